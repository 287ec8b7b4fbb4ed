"""Send a run's lines to SwanLab, or, offline, to files of `swanlab sync`.

Each session gives all lines to SwanLab's client, which leaves out those that SwanLab has: it asks for the last step of
each metric when it opens the run. So nothing has to be remembered, and a step that SwanLab has is never changed.
"""

from __future__ import annotations

import textwrap
import time
from typing import Any

import swanlab

from meds_openrlhf.tracking.sending.destinations import names_of
from meds_openrlhf.tracking.sending.run_lines import RunLine
from meds_openrlhf.tracking.sending.sender import Session, without_keys
from meds_openrlhf.tracking.sending.tracking_state import change_state


class SwanlabSession(Session):
    """Sends to SwanLab, or writes files offline."""

    _run: Any = None
    _transport: Any = None  # the client's uploads; none offline
    _has_refused = False
    _arrived = 0  # records at SwanLab

    def send_new(self) -> bool:
        """See `Session`."""
        lines = self._lines.read_new()
        if lines and self._run is None:
            self._open()
        for line in lines:
            if record := _record_of(line):
                self._run.log(record, step=line.step)
        if self._run is not None:
            self._look()
        return bool(lines)

    def finish(self) -> None:
        """Close the run, which waits until everything has arrived. Raises RuntimeError if something has not."""
        if self._run is None:
            return
        self.waiting_since = time.monotonic()
        self._run.finish()
        self._look()
        if self.waiting_since is not None:
            raise RuntimeError("not everything has arrived")

    def still_answers(self) -> bool:
        """See `Session`; whether something has arrived since the last look."""
        before = self._arrived
        if self._run is not None:
            self._look()
        return self._arrived != before

    def _open(self) -> None:
        online = self._environment.get("SWANLAB_MODE", "") in ("", "online", "cloud")
        self.waiting_since = time.monotonic()
        self._run = swanlab.init(
            id=change_state(self._paths, lambda state: state).id,
            resume="allow",
            config=self._shown_config(),
            log_dir=str(self._paths.root / "swanlab"),
            settings=_settings(online),
            **names_of("swanlab", self._config, self._paths, self._environment),
        )
        self._transport = self._run._core._transport
        self.is_open = True

    def _look(self) -> None:
        """Find out what has arrived, and since when nothing more has."""
        stats = self._run._core.get_operation_stats().stats  # the counts of its progress bar; no public call has them
        if stats.uploaded_records == stats.total_records:
            self.waiting_since = None
        elif stats.uploaded_records != self._arrived or self.waiting_since is None:
            self.waiting_since = time.monotonic()
        self._arrived = stats.uploaded_records
        # The client counts records that SwanLab refuses as uploaded and drops them: failures, and nothing left to try.
        failures = self._transport.last_failures() if self._transport is not None else []
        if failures and not self._transport.pending_records() and not self._has_refused:
            self._has_refused = True
            reason = textwrap.shorten(without_keys(failures[0].message), 200)
            self._say(f"SwanLab: it has refused records, which are missing there: {reason}")


def _settings(online: bool) -> swanlab.Settings:
    return swanlab.Settings(
        interactive=False,
        # What it would collect describes this process, not the training.
        probe=dict.fromkeys(("hardware", "runtime", "requirements", "git", "swanlab", "monitor"), False),
        terminal={"proxy_type": "none"},
        core={"skip_store": online},  # the run's folder has everything; each failed start would leave another one
    )


def _record_of(line: RunLine) -> dict[str, Any]:
    """The record of a line, for `swanlab.log`."""
    if line.biggest_clusters:
        return {"train/biggest_clusters": swanlab.Text(line.biggest_clusters)}
    return dict(line.numbers)
