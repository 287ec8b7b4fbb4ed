"""Send a run's lines to Weights & Biases. A line counts as sent when W&B itself confirms it.

W&B's client accepts a record at once and uploads it later; a killed client loses what it has not uploaded. So W&B is
asked for the number of its last record, and the next session sends everything after the last confirmed one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import wandb
from pydantic import ValidationError
from wandb.apis.normalize import normalize_exceptions

from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.sending.destinations import is_offline, names_of
from meds_openrlhf.tracking.sending.run_lines import Positions, RunLine, RunLines
from meds_openrlhf.tracking.sending.sender import Session, log
from meds_openrlhf.tracking.sending.tracking_state import TrackingState, change_state
from meds_openrlhf.tracking.sending.wandb_snapshots import artifact_of, digest_of, read_manifests

AXIS = "train/global_step"  # not W&B's own step, which counts records
TABLE_NAME = "train/biggest_clusters"
COLUMNS = ("step", "prompt", "label", "size", "members", "answer", "response")  # of that table
OPEN_SECONDS = 600.0  # time limit of W&B's client; the user gets a message much earlier
ASK_SECONDS = 15.0  # between two queries; the upload interval of W&B's client
ANSWER_SECONDS = 15  # time limit of a query
CONFIRM_SECONDS = 30.0  # for the last confirmation, after the run was closed
STALLED_SECONDS = 600.0  # if W&B answers but confirms nothing for this long, a new session may succeed


class StalledError(Exception):
    """W&B accepts no records of this session."""


class WandbSession(Session):
    """Sends to W&B, or writes files offline; the records of a run have the names of OpenRLHF's dashboards."""

    def __init__(
        self, paths: RunPaths, config: RunConfig, environment: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        super().__init__(paths, config, environment, say)
        self._offline = is_offline("wandb", environment)
        self._state = change_state(paths, self._at_start)
        self._lines = RunLines(paths, self._state.lines)
        self._snapshots = dict(self._state.snapshots)  # with those logged in this session
        self._snapshots_changed = 0  # time of the last look at a changed folder
        self._run: Any = None
        self._number = self._number_at_last_look = 0  # how many records the run has, with those on their way
        self._unconfirmed: deque[tuple[int, Positions]] = deque()  # by batch: that number after it, and the positions
        self._next_look = self._last_news = time.monotonic()
        self._is_closing, self._did_answer = False, False

    def send_new(self) -> bool:
        """See `Session`; also sends new snapshots of the memory."""
        lines = self._lines.read_new()
        snapshots = self._new_snapshots()
        if not lines and not snapshots:
            self._look()
            return False
        if self._run is None:
            self._open()
            if not self._has_what_was_sent():
                self._forget()
                lines, snapshots = self._lines.read_new(), self._new_snapshots()
        for line in lines:
            self._log_line(line)
        if lines:
            self._last_news = self._last_news if self._unconfirmed else time.monotonic()
            self._unconfirmed.append((self._number, dict(self._lines.positions)))
        for name, manifest in snapshots.items():
            self._log_snapshot(name, manifest)
        self._look()
        return True

    def finish(self) -> None:
        """Close the run and wait for the uploads. Raises StalledError if something did not arrive."""
        if self._run is None:
            return
        self._is_closing, self._next_look = True, 0.0
        self._ask(self._run.finish)
        if not self._offline and self._unconfirmed:
            self._ask(self._wait_for_confirmation)
        self._confirm(self._number, self._lines.positions, self._snapshots)

    def still_answers(self) -> bool:
        """See `Session`; W&B may take its time to close the run, for example for large uploads."""
        if self._is_closing and not self._offline and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + ASK_SECONDS
            self._did_answer = self._records_at_wandb() is not None
        return self._is_closing and self._did_answer

    def _at_start(self, state: TrackingState) -> TrackingState:
        state = replace(state, wandb_id=state.wandb_id or self._environment.get("WANDB_RUN_ID") or state.id)
        if state.offline and not self._offline:  # what offline sessions wrote is only in their files
            state = replace(state, records=0, lines={}, snapshots={})
        return replace(state, offline=self._offline)

    def _open(self) -> None:
        try:
            self._run = self._ask(open_run, self._run_arguments())
        except Exception:  # of any kind: without this, the client calls the next try's run "in use"
            wandb.teardown()
            raise
        self.is_open = True
        self._number = self._number_at_last_look = self._state.records if self._offline else self._run.starting_step

    def _run_arguments(self) -> dict[str, Any]:
        names = names_of("wandb", self._config, self._paths, self._environment)
        self._paths.root.joinpath("wandb").mkdir(exist_ok=True)
        folder = {} if self._environment.get("WANDB_DIR") else {"dir": str(self._paths.root)}
        return {"id": self._state.wandb_id, "config": self._shown_config(), **names, **folder}

    def _has_what_was_sent(self) -> bool:
        """Whether W&B knows the run: another project does not, nor one in which it was deleted."""
        return self._offline or self._run.resumed or not self._state.lines

    def _forget(self) -> None:
        """Begin with the first line and snapshot; stored before anything is sent, or the next session would skip it."""
        self._confirm(0, {}, {})
        self._lines, self._snapshots, self._snapshots_changed = RunLines(self._paths, {}), {}, 0

    def _wait_for_confirmation(self) -> None:
        """Wait until W&B has all records, which it may say late. Raises StalledError if it does not."""
        deadline = time.monotonic() + CONFIRM_SECONDS
        while (self._records_at_wandb() or 0) < self._number:
            if time.monotonic() > deadline:
                raise StalledError
            time.sleep(1.0)

    def _log_line(self, line: RunLine) -> None:
        record = {**record_of(line), AXIS: line.step}
        if line.stream == "clusters":  # the client may ask W&B about a table, which the other records do not need
            self._ask(self._run.log, record, step=self._number, commit=True)
        else:
            self._run.log(record, step=self._number, commit=True)
        self._number += 1

    def _new_snapshots(self) -> dict[str, bytes]:
        folder = self._paths.memory.snapshots
        changed = folder.stat().st_mtime_ns if folder.is_dir() else 0
        if self._config.meds.tracking.snapshots == "none" or changed == self._snapshots_changed:
            return {}
        self._snapshots_changed = changed
        manifests = read_manifests(self._paths.memory)
        return {name: content for name, content in manifests.items() if self._snapshots.get(name) != digest_of(content)}

    def _log_snapshot(self, name: str, manifest: bytes) -> None:
        self._snapshots[name] = digest_of(manifest)
        try:
            artifact = artifact_of(name, manifest, self._paths.memory, self._config.meds, self._run.id)
        except (FileNotFoundError, MemoryCorruptionError, ConfigError) as error:
            self._say(f"the memory's snapshot {name} is not sent to W&B: {error}")
            return
        self._ask(self._run.log_artifact, artifact, aliases=["latest", name])

    def _look(self) -> None:
        """Every `ASK_SECONDS`, find out what has arrived."""
        if not self._unconfirmed or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + ASK_SECONDS
        self.waiting_since = self.waiting_since or time.monotonic()
        arrived = self._number_at_last_look if self._offline else self._records_at_wandb()
        self._number_at_last_look = self._number  # offline, the client writes to its file every second
        if arrived is None:
            return
        self.waiting_since = None
        confirmed = None
        while self._unconfirmed and self._unconfirmed[0][0] <= arrived:
            confirmed = self._unconfirmed.popleft()
        if confirmed is not None:
            self._confirm(*confirmed, self._state.snapshots)
            self._last_news = time.monotonic()
        elif time.monotonic() > self._last_news + STALLED_SECONDS:
            raise StalledError

    def _confirm(self, records: int, lines: Positions, snapshots: dict[str, str]) -> None:
        confirmed = partial(replace, records=records, lines=dict(lines), snapshots=dict(snapshots))
        self._state = self._note(confirmed)

    def _records_at_wandb(self) -> int | None:
        """How many records W&B has; None if it does not answer."""
        try:
            last: int = _last_number(self._run.path)
            return last + 1
        except wandb.Error as error:
            log(f"W&B did not say what it has: {type(error).__name__}\n")
            return None


@normalize_exceptions  # W&B's decorator turns network errors into wandb.Error
def _last_number(path: str) -> int:
    return int(wandb.Api(timeout=ANSWER_SECONDS).run(path).lastHistoryStep)


def open_run(arguments: Mapping[str, Any]) -> Any:
    """Open a new run or resume it. Waits for W&B, unless it is offline.

    Raises wandb.Error if W&B refuses, and ValueError or TypeError if its client does not take the settings.
    """
    try:
        run = wandb.init(resume="allow", settings=_settings(), **arguments)
    except ValidationError as error:  # its message shows the values, which may include a key
        fields = ", ".join(".".join(map(str, problem["loc"])) for problem in error.errors())
        raise ValueError(f"its client does not take {fields}; check the WANDB_* variables") from None
    run.define_metric(AXIS)
    run.define_metric("train/*", step_metric=AXIS)
    run.define_metric("eval/*", step_metric=AXIS)
    return run


def _settings() -> wandb.Settings:
    return wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        init_timeout=OPEN_SECONDS,
        quiet=True,
        silent=True,
        x_disable_machine_info=True,  # it would describe this process, not the training
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
        x_transaction_log_flush_interval=1.0,
    )


def record_of(line: RunLine) -> dict[str, Any]:
    """The record of a line, for `wandb.log`."""
    record: dict[str, Any] = {**line.numbers}
    for name, histogram in line.histograms.items():
        record[name] = wandb.Histogram(np_histogram=(histogram["counts"], histogram["edges"]))
    if biggest := line.values.get("biggest_clusters"):
        record[TABLE_NAME] = wandb.Table(list(COLUMNS), [_row(line.step, cluster) for cluster in biggest])
    if line.stream == "evaluations":
        record["eval/global_step"] = line.step
    return record


def _row(step: int, cluster: dict[str, Any]) -> list[Any]:
    """A cluster as a row of `COLUMNS`; the prompt is its text if the line has it, else its key."""
    values = [cluster[name] for name in COLUMNS[2:]]
    return [step, cluster.get("prompt_text") or cluster["prompt"], *values]
