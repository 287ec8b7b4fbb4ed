"""``tracking.json``: the positions sent to each destination, and the run's id at Weights & Biases.

Several processes change it: those that send to TensorBoard and to W&B, and the driver, which rewinds both positions
when it resumes a run. Each reads, changes and writes it under a lock, so that no change is lost.
"""

from __future__ import annotations

import fcntl
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import write_atomically
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.sending.run_lines import STREAMS, RunLines

# The number of sent lines of each stream. W&B gets the clusters twice: as histograms and, later, as a table.
Positions = dict[str, int]
TABLE = "biggest"
FILE_OF = {**{stream: stream for stream in STREAMS}, TABLE: "clusters"}


class SentBackError(Exception):
    """The run was resumed meanwhile, so lines must be sent again: restart the session."""


@dataclass(frozen=True)
class Handed:
    """The lines sent to W&B, in numbered records: W&B numbers its history and reports the last number.

    Records below ``settled`` have arrived. ``before[i]`` are the positions before record ``settled + i``; the last
    entry has the current positions.
    """

    settled: int = 0
    before: tuple[Positions, ...] = ({},)

    @property
    def next(self) -> int:
        """The number of the next record."""
        return self.settled + len(self.before) - 1

    @property
    def positions(self) -> Positions:
        """The number of sent lines of each stream."""
        return self.before[-1]

    def with_record(self, **moved: int) -> Handed:
        """Add a record, after which the positions in ``moved`` have the given values."""
        return replace(self, before=(*self.before, {**self.positions, **moved}))

    def settle(self, taken: int) -> Handed:
        """Mark all records below ``taken`` as arrived."""
        taken = min(max(taken, self.settled), self.next)
        return Handed(taken, self.before[taken - self.settled :])

    def go_on_at(self, taken: int) -> Handed:
        """Start a new session with ``taken`` records at W&B: missing records are sent again under the same numbers.

        A run with fewer than ``settled`` records is a different run (another project, or deleted) and gets everything.
        """
        if taken < self.settled:
            return Handed(taken)
        if taken > self.next:
            return Handed(taken, (self.positions,))
        return Handed(taken, (self.before[taken - self.settled],))

    def sent_back(self, most: Positions) -> Handed:
        """Limit all positions to ``most``, wherever the next session continues."""
        return replace(self, before=tuple(_lowered(positions, most) for positions in self.before))


@dataclass(frozen=True)
class TrackingState:
    """The content of ``tracking.json``."""

    times_sent_back: int = 0
    tensorboard: Positions = field(default_factory=dict)
    tensorboard_again_from: int | None = None  # steps from here on are shown already and are sent again
    wandb_id: str | None = None
    wandb: Handed = field(default_factory=Handed)
    wandb_offline: bool = False  # whether the records went to files of W&B's offline mode
    wandb_snapshots: dict[str, str] = field(default_factory=dict)  # SHA-256 of the logged manifests, by name

    def sent_back(self, most: Positions, step: int) -> TrackingState:
        """Rewind to ``step``: lines of later steps no longer count as sent."""
        again = step + 1 if self.tensorboard_again_from is None else min(step + 1, self.tensorboard_again_from)
        return replace(
            self,
            times_sent_back=self.times_sent_back + 1,
            tensorboard=_lowered(self.tensorboard, most),
            tensorboard_again_from=again,
            wandb=self.wandb.sent_back(most),
        )


class StateFile:
    """Reads and changes a run's ``tracking.json``."""

    def __init__(self, paths: RunPaths) -> None:
        self._path = paths.tracking

    def read(self) -> TrackingState:
        """Read the state; a new one if there is no file. Raises ConfigError if the file holds something else."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return TrackingState()
        try:
            content = json.loads(text)
            handed = content.pop("wandb")
            return TrackingState(wandb=Handed(handed["settled"], tuple(handed["before"])), **content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            hint = f"holds no state of tracking ({error!r}); remove it, and everything is sent again"
            raise ConfigError("RUN", str(self._path), hint) from error

    def change(self, change: Callable[[TrackingState], TrackingState], of: int | None = None) -> TrackingState:
        """Apply ``change`` to the state and write it.

        Raises SentBackError, with nothing changed, if ``of`` is given and differs from the state's ``times_sent_back``.
        """
        with self._locked():
            state = self.read()
            if of is not None and state.times_sent_back != of:
                raise SentBackError
            changed = change(state)
            if changed != state or not self._path.exists():
                write_atomically(self._path, json.dumps(asdict(changed), indent=1) + "\n")
            return changed

    def run_id(self, wanted: str | None) -> str:
        """The run's id at W&B: the stored id, else ``wanted``, else a new id. Stores the result."""
        fresh = wanted or uuid.uuid4().hex[:12]
        state = self.change(lambda state: state if state.wandb_id else replace(state, wandb_id=fresh))
        return str(state.wandb_id)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._path.with_name(".tracking.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def rewind(paths: RunPaths, step: int) -> None:
    """Rewind all positions to ``step`` for a resumed run: later steps are repeated and sent again.

    Call this after the run's files are truncated and before a line is appended: until then, sending processes have
    nothing new to read, and at the first new line they notice that they must restart.
    """
    if not paths.tracking.exists():
        return
    lines = RunLines(paths)
    counts = {stream: lines.count_up_to(stream, step) for stream in STREAMS}
    most = {name: counts[stream] for name, stream in FILE_OF.items()}
    StateFile(paths).change(lambda state: state.sent_back(most, step))


def _lowered(positions: Mapping[str, int], most: Mapping[str, int]) -> Positions:
    return {name: min(position, most.get(name, position)) for name, position in positions.items()}
