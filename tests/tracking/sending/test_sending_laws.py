"""Whatever happens to the process that sends, every line that stays arrives, in order."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from meds_openrlhf.tracking.sending import wandb_session
from meds_openrlhf.tracking.sending.run_lines import RewoundError
from meds_openrlhf.tracking.sending.tensorboard_session import TensorBoardSession
from meds_openrlhf.tracking.sending.wandb_session import WandbSession
from tests.tracking.sending.far_side import FarSide
from tests.tracking.sending.written_run import WrittenRun

STREAMS = ("metrics", "evaluations", "clusters")
ACTIONS = st.lists(
    st.one_of(
        st.sampled_from([*STREAMS, *STREAMS, "send", "send", "finish"]),
        st.tuples(st.just("kill"), st.integers(0, 8)),
        st.tuples(st.just("resume"), st.integers(0, 6)),
        st.tuples(st.just("arrive"), st.integers(0, 8)),
    ),
    max_size=30,
)


class Story:
    """A run that is written, cut, and sent in sessions that die; each line has a value of its own."""

    def __init__(self, folder: Path) -> None:
        self.run = WrittenRun(folder / "run")
        self.far = FarSide()
        self.session: Any = None
        self.steps = dict.fromkeys(STREAMS, 0)
        self.value = 0
        self.written: dict[str, list[tuple[int, int]]] = {stream: [] for stream in STREAMS}
        self.was_killed = False

    def write(self, stream: str) -> None:
        self.steps[stream] += 1
        self.value += 1
        self.written[stream].append((self.steps[stream], self.value))
        content: dict[str, Any] = {"value": self.value}
        if stream == "clusters":
            content = {"histograms": {"value": {"edges": [0, 1], "counts": [self.value]}}}
        self.run.logs[stream].append(self.steps[stream], content)

    def resume(self, step: int) -> None:
        self.run.resume(step)
        for stream in STREAMS:
            self.written[stream] = [one for one in self.written[stream] if one[0] <= step]
            self.steps[stream] = min(self.steps[stream], step)

    def send(self, make: Any, to_the_end: bool = False) -> None:
        """Send what is new, in another session where the run was resumed, as the process does."""
        for _ in range(2):
            try:
                self.session = self.session or make()
                while self.session.send_new():
                    pass
                if to_the_end:
                    self.session.finish()
                    self.session = None
                return
            except RewoundError:
                self.kill(0)
        raise AssertionError("rewound for ever")

    def kill(self, arrived: int) -> None:
        self.far.arrive(arrived)
        self.was_killed = True
        self.session = None

    def play(self, actions: list[Any], make: Any) -> None:
        for action in actions:
            match action:
                case "send":
                    self.send(make)
                case "finish":
                    self.send(make, to_the_end=True)
                case ("kill", count):
                    self.kill(count)
                case ("resume", step):
                    self.resume(step)
                case ("arrive", count):
                    self.far.arrive(count)
                case stream:
                    self.write(stream)
        self.send(make, to_the_end=True)


def value_of(stream: str, record: dict[str, Any]) -> int | None:
    if stream == "clusters":
        histogram = record.get("train/value")
        return None if isinstance(histogram, (int, type(None))) else histogram.histogram[0]
    value = record.get("train/value" if stream == "metrics" else "eval/value")
    return value if isinstance(value, int) else None


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_wandb_gets_every_line_in_order(actions: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder))
        far, run = story.far, story.run
        config = run.config
        monkeypatch.setattr(wandb_session, "open_run", far.open)
        monkeypatch.setattr(WandbSession, "_records_at_wandb", lambda _: len(far.there))
        monkeypatch.setattr(wandb_session, "ASK_SECONDS", 0.0)
        story.play(actions, lambda: WandbSession(run.paths, config, {}, print))
        for stream in STREAMS:
            values = [value for record in far.there if (value := value_of(stream, record)) is not None]
            firsts = list(dict.fromkeys(values))
            assert firsts == sorted(firsts)
            assert {value for _, value in story.written[stream]} <= set(values)
            if not story.was_killed:  # nothing is sent twice
                assert values == firsts


@settings(max_examples=25)
@given(actions=ACTIONS)
def test_tensorboard_shows_every_line_once_and_in_order(actions: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder))
        run, config = story.run, story.run.config
        story.play(actions, lambda: TensorBoardSession(run.paths, config, {}, print))
        run.tensorboard.mkdir(parents=True, exist_ok=True)
        board = EventAccumulator(str(run.tensorboard), size_guidance={"histograms": 0})
        board.Reload()
        for stream, tag in (("metrics", "train/value"), ("evaluations", "eval/value")):
            shown = [(one.step, int(one.value)) for one in (board.Scalars(tag) if story.written[stream] else [])]
            assert shown == story.written[stream]
        if story.written["clusters"]:
            shown = [(one.step, int(one.histogram_value.num)) for one in board.Histograms("train/value")]
            assert shown == story.written["clusters"]
