"""Send a run's lines to Weights & Biases. A record counts as sent if W&B itself reports it.

W&B's client accepts a record immediately and uploads it later, and a killed client loses the records that it has not
uploaded. So each record gets a number, which is W&B's step, and `Handed` stores the lines of records that may not have
arrived. A new session asks W&B for its last number and continues from there.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import wandb
from wandb.apis.normalize import normalize_exceptions

from meds_openrlhf.config import ConfigError
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.sending.destinations import Destinations, wandb_is_offline
from meds_openrlhf.tracking.sending.patience import Patience
from meds_openrlhf.tracking.sending.run_lines import STREAMS, RunLine, RunLines
from meds_openrlhf.tracking.sending.tracking_state import (
    TABLE,
    Handed,
    Positions,
    SentBackError,
    StateFile,
    TrackingState,
)
from meds_openrlhf.tracking.sending.wandb_records import COLUMNS, TABLE_NAME, record_of, table_rows
from meds_openrlhf.tracking.sending.wandb_run import AXIS, open_run
from meds_openrlhf.tracking.sending.wandb_snapshots import Manifest, artifact_of, as_seen, manifests_in

AT_ONCE = 100
ON_THE_WAY = 1000  # maximum number of records in W&B's client; more stay in the run's files
ASK_SECONDS = 15.0  # between two queries for W&B's last number; the upload interval of its client
ASK_PATIENCE = 15  # timeout of a query, seconds
STALLED_SECONDS = 600.0  # if no record arrives for this long although W&B answers, the session ends
TABLE_SECONDS = 60.0  # between two increments of the table; W&B shows the last hundred


class StalledError(Exception):
    """W&B answers, but accepts no records of this session; a new session may succeed."""


class WandbSink:
    """A session: opens the run when there is something to send, and closes it when everything has arrived."""

    def __init__(
        self,
        paths: RunPaths,
        to: Destinations,
        state: StateFile,
        lines: RunLines,
        patience: Patience,
        say: Callable[..., None],
    ) -> None:
        self._paths, self._to, self._state, self._lines = paths, to, state, lines
        self._patience, self._say = patience, say
        self._environment: Mapping[str, str] = dict(os.environ)
        self._offline = wandb_is_offline(self._environment)
        before = state.change(self._from_offline) if not self._offline else state.read()
        self._times_sent_back, self._handed = before.times_sent_back, before.wandb
        self._run: Any = None
        self._seen_by_wandb: Any = None  # the run in W&B's public interface
        self._table: Any = None
        self._snapshots: dict[str, str] = {}  # logged in this session
        self._manifests_seen: list[tuple[str, int, int]] = []
        self._last_error = ""
        self._on_disk = before.wandb.settled
        self._next_question = self._last_arrival = self._last_table = time.monotonic()

    @staticmethod
    def _from_offline(state: TrackingState) -> TrackingState:
        """Reset the state of an offline session: its records are only in files, so W&B gets everything again."""
        if not state.wandb_offline:
            return state
        return replace(state, wandb=Handed(), wandb_snapshots={}, wandb_offline=False)

    def hand_new(self, last: bool = False) -> bool:
        """Send new lines; returns whether there were any. ``last``: do not delay anything for later."""
        lines = self._new_lines()
        rows_wait = self._rows_wait(last or self._run is None)
        snapshots = self._new_snapshots()
        if not (lines or rows_wait or snapshots or (self._run is None and self._handed.next > self._handed.settled)):
            self._ask()
            return False
        if self._run is None:
            self._open()  # which may send positions back
            return True
        self._hand_lines(lines)
        if rows_wait:
            self._hand_table()
        for manifest in snapshots:
            self._log_snapshot(manifest)
        self._ask()
        return bool(lines or snapshots)

    def finish(self) -> bool:
        """Close the run and wait for the uploads; returns whether W&B has everything."""
        if self._run is None:
            return True
        self._close_run()
        if not self._offline and self._handed.next > self._handed.settled:
            taken = self._ask_last_number()
            if taken is None or taken < self._handed.next:
                return False
        self._change(self._handed.settle(self._handed.next), self._snapshots)
        return not self._new_lines()

    def _close_run(self) -> None:
        """Wait for the uploads, which may take long, and meanwhile check that W&B still answers."""
        closed = threading.Event()
        asking = threading.Thread(target=self._ask_until, args=(closed,), daemon=True)
        self._patience.expect()
        if not self._offline:
            asking.start()
        try:
            self._run.finish()
        finally:
            closed.set()
        if not self._offline:
            asking.join()
        self._patience.answered()

    def _ask_until(self, closed: threading.Event) -> None:
        while not closed.wait(ASK_SECONDS):
            self._patience.expect()
            if self._ask_last_number() is not None:
                self._patience.answered()

    def _open(self) -> None:
        run_id = self._state.run_id(self._environment.get("WANDB_RUN_ID"))
        self._patience.expect()
        self._run = open_run(self._paths, self._to, run_id, self._environment)
        self._patience.answered()
        taken = self._handed.settled if self._offline else self._run.starting_step
        self._change(self._handed.go_on_at(taken))

    def _new_lines(self) -> list[tuple[str, RunLine]]:
        """The next lines of all streams, sorted by step."""
        room = min(AT_ONCE, ON_THE_WAY - (self._handed.next - self._handed.settled))
        if room <= 0:
            return []
        positions = self._handed.positions
        found = [
            (stream, line) for stream in STREAMS for line in self._lines.read(stream, positions.get(stream, 0), room)
        ]
        if found:
            self._require_same_time_round()
        return sorted(found, key=lambda one: one[1].step)[:room]

    def _require_same_time_round(self) -> None:
        if self._state.read().times_sent_back != self._times_sent_back:
            raise SentBackError  # these may be lines from before the resume

    def _hand_lines(self, lines: list[tuple[str, RunLine]]) -> None:
        handed = self._handed
        for stream, _ in lines:
            handed = handed.with_record(**{stream: handed.positions.get(stream, 0) + 1})
        records = [record_of(stream, line) for stream, line in lines]
        self._hand(handed, records)

    def _hand(self, handed: Handed, records: list[dict[str, Any]]) -> None:
        """Store the state before sending: if sending fails, W&B reports that the record is missing."""
        first = self._handed.next
        if first == self._handed.settled:
            self._last_arrival = time.monotonic()
        self._change(handed)
        for number, record in enumerate(records, start=first):
            self._run.log(record, step=number, commit=True)

    def _rows_wait(self, now: bool) -> bool:
        positions = self._handed.positions
        waits = positions.get(TABLE, 0) < positions.get("clusters", 0)
        return waits and (now or time.monotonic() >= self._last_table + TABLE_SECONDS)

    def _hand_table(self) -> None:
        """Send the rows of all steps whose histograms were sent, as one increment of the table."""
        positions: Positions = self._handed.positions
        first, behind = positions.get(TABLE, 0), positions["clusters"]
        lines = self._lines.read("clusters", first, behind - first)
        self._require_same_time_round()
        if not lines:  # truncated by a resuming run, which is about to call `rewind`
            return
        rows = [row for line in lines for row in table_rows(line)]
        if self._table is None:
            self._table = wandb.Table(columns=list(COLUMNS), log_mode="INCREMENTAL")
        for row in rows:
            self._table.add_data(*row)
        records = [{TABLE_NAME: self._table, AXIS: lines[-1].step}] if rows else [{AXIS: lines[-1].step}]
        self._patience.expect()  # the client blocks on a request about the table first
        self._hand(self._handed.with_record(**{TABLE: behind}), records)
        self._patience.answered()
        self._last_table = time.monotonic()

    def _new_snapshots(self) -> list[Manifest]:
        if self._to.snapshots == "none" or (seen := as_seen(self._paths.memory)) == self._manifests_seen:
            return []
        known = {**self._state.read().wandb_snapshots, **self._snapshots}
        new = [one for one in manifests_in(self._paths.memory) if known.get(one.name) != one.digest]
        if not new:
            self._manifests_seen = seen
        return new

    def _log_snapshot(self, manifest: Manifest) -> None:
        self._snapshots[manifest.name] = manifest.digest
        try:
            artifact = artifact_of(manifest, self._paths.memory, self._to, self._run.id)
        except (FileNotFoundError, MemoryCorruptionError, ConfigError) as error:
            self._say(f"the memory's snapshot {manifest.name} is not sent to W&B: {error}", well=None)
            return
        self._patience.expect()
        self._run.log_artifact(artifact, aliases=["latest", manifest.name])
        self._patience.answered()

    def _ask(self) -> None:
        """Every `ASK_SECONDS`, query W&B for the records that have arrived."""
        now = time.monotonic()
        if self._run is None or now < self._next_question or self._handed.next == self._handed.settled:
            return
        self._next_question = now + ASK_SECONDS
        self._patience.expect()
        # Offline, the client flushes to a file every second, so all records before the last query are on disk.
        taken = self._on_disk if self._offline else self._ask_last_number()
        self._on_disk = self._handed.next
        if taken is None:
            return
        self._patience.answered()
        arrived = self._handed.settle(taken)
        if arrived.settled > self._handed.settled:
            self._last_arrival = now
            self._change(arrived)
        elif now > self._last_arrival + STALLED_SECONDS:
            raise StalledError

    def _ask_last_number(self) -> int | None:
        """The number of records that W&B has; None if the query fails."""
        try:
            if self._seen_by_wandb is None:
                self._seen_by_wandb = _as_wandb_sees_it(self._run.path)
            last: int = _last_number(self._seen_by_wandb)
            return last + 1
        except wandb.Error as error:
            if type(error).__name__ != self._last_error:
                self._last_error = type(error).__name__
                sys.stderr.write(f"W&B was asked what it has, in vain: {self._last_error}\n")
            return None

    def _change(self, handed: Handed, snapshots: Mapping[str, str] | None = None) -> None:
        def changed(state: Any) -> Any:
            sent = {**state.wandb_snapshots, **(snapshots or {})}
            return replace(state, wandb=handed, wandb_snapshots=sent, wandb_offline=self._offline)

        self._state.change(changed, of=self._times_sent_back)
        self._handed = handed


@normalize_exceptions
def _as_wandb_sees_it(path: str) -> Any:
    return wandb.Api(timeout=ASK_PATIENCE).run(path)


@normalize_exceptions  # W&B's decorator turns network errors into wandb.Error
def _last_number(run: Any) -> int:
    return int(run.lastHistoryStep)
