"""``tracking.json``: what was handed on, to whom, and the run's id at Weights & Biases.

Several processes change it: one that sends to TensorBoard, one that sends to W&B, and the driver, which sends both back
when it resumes a run. Each reads, changes and publishes it under a lock, so that none undoes another's change.
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

# How many lines of each stream were handed on. W&B gets the clusters twice: as histograms and, later, as a table.
Positions = dict[str, int]
TABLE = "biggest"
FILE_OF = {**{stream: stream for stream in STREAMS}, TABLE: "clusters"}


class SentBackError(Exception):
    """The run was resumed meanwhile, and lines are to be sent again: begin anew."""


@dataclass(frozen=True)
class Handed:
    """What W&B was handed, in numbered records: it numbers history itself, and says what its last number is.

    Records below ``settled`` are there. ``before[i]`` is how many lines had been handed before record ``settled + i``;
    the last one, how many have been by now.
    """

    settled: int = 0
    before: tuple[Positions, ...] = ({},)

    @property
    def next(self) -> int:
        """The number of the next record."""
        return self.settled + len(self.before) - 1

    @property
    def positions(self) -> Positions:
        """How many lines of each stream have been handed on."""
        return self.before[-1]

    def with_record(self, **moved: int) -> Handed:
        """One record more, after which the positions ``moved`` are as given."""
        return replace(self, before=(*self.before, {**self.positions, **moved}))

    def settle(self, taken: int) -> Handed:
        """All records below ``taken`` have arrived."""
        taken = min(max(taken, self.settled), self.next)
        return Handed(taken, self.before[taken - self.settled :])

    def go_on_at(self, taken: int) -> Handed:
        """A new session finds ``taken`` records at W&B: what it lacks is handed again, under the same numbers.

        A run that has less than was settled is another one (another project, or deleted): it gets everything.
        """
        if taken < self.settled:
            return Handed(taken)
        if taken > self.next:
            return Handed(taken, (self.positions,))
        return Handed(taken, (self.before[taken - self.settled],))

    def sent_back(self, most: Positions) -> Handed:
        """No stream is further than ``most`` says, wherever a next session goes on."""
        return replace(self, before=tuple(_lowered(positions, most) for positions in self.before))


@dataclass(frozen=True)
class TrackingState:
    """The content of ``tracking.json``."""

    times_sent_back: int = 0
    tensorboard: Positions = field(default_factory=dict)
    tensorboard_again_from: int | None = None  # steps from here on are shown already, and come again
    wandb_id: str | None = None
    wandb: Handed = field(default_factory=Handed)
    wandb_offline: bool = False  # whether what was handed went to files of W&B's offline mode
    wandb_snapshots: dict[str, str] = field(default_factory=dict)  # SHA-256 of the manifests that are there, by name

    def sent_back(self, most: Positions, step: int) -> TrackingState:
        """What was handed of the steps after ``step`` counts no more."""
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
        """The state; a fresh one where there is no file. Raises ConfigError for a file that holds something else."""
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
        """Publish what ``change`` makes of the state.

        Raises SentBackError, with nothing changed, where the run was sent back since it was so for the ``of``-th time.
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
        """The run's id at W&B: the one that it has, else ``wanted``, else a new one; kept from now on."""
        fresh = wanted or uuid.uuid4().hex[:12]
        state = self.change(lambda state: state if state.wandb_id else replace(state, wandb_id=fresh))
        return str(state.wandb_id)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._path.with_name(".tracking.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def rewind(paths: RunPaths, step: int) -> None:
    """A run goes on after ``step``: what comes after it is going to be repeated, and sent again.

    To be called when the run's files are cut, and before a line is added to them: whoever sends them meanwhile has
    nothing new to read until then, and notices with the first new line that it has to begin anew.
    """
    if not paths.tracking.exists():
        return
    lines = RunLines(paths)
    counts = {stream: lines.count_up_to(stream, step) for stream in STREAMS}
    most = {name: counts[stream] for name, stream in FILE_OF.items()}
    StateFile(paths).change(lambda state: state.sent_back(most, step))


def _lowered(positions: Mapping[str, int], most: Mapping[str, int]) -> Positions:
    return {name: min(position, most.get(name, position)) for name, position in positions.items()}
