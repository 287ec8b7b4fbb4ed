"""Whatever happens to the process that sends, every line that stays arrives, in order."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from meds_openrlhf.tracking.sending import wandb_sink
from meds_openrlhf.tracking.sending.patience import Patience
from meds_openrlhf.tracking.sending.run_lines import RunLines
from meds_openrlhf.tracking.sending.tensorboard_sink import TensorboardSink
from meds_openrlhf.tracking.sending.tracking_state import SentBackError, StateFile
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
    """A run that is written, cut, and sent by sinks that die; each line has a value of its own."""

    def __init__(self, folder: Path) -> None:
        self.run = WrittenRun(folder / "run")
        self.far = FarSide()
        self.sink: Any = None
        self.steps = dict.fromkeys(STREAMS, 0)
        self.value = 0
        self.written: dict[str, list[tuple[int, int]]] = {stream: [] for stream in STREAMS}

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
        """Hand on what is new, beginning anew where the sink says so, as its process does."""
        for _ in range(3):
            try:
                self.sink = self.sink or make()
                while self.sink.hand_new(to_the_end):
                    pass
                assert not to_the_end or self.sink.finish()
                return
            except SentBackError:
                self.kill(0)
        raise AssertionError("sent back for ever")

    def finish(self, make: Any) -> None:
        self.send(make, to_the_end=True)
        self.kill(0)

    def kill(self, arrived: int) -> None:
        self.far.arrive(arrived)
        self.far.on_the_way = []
        self.far.starting_step = len(self.far.there)
        self.sink = None


def play(story: Story, actions: list[Any], make: Any) -> None:
    for action in actions:
        match action:
            case "send":
                story.send(make)
            case "finish":
                story.finish(make)
            case ("kill", count):
                story.kill(count)
            case ("resume", step):
                story.resume(step)
            case ("arrive", count):
                story.far.arrive(count)
            case stream:
                story.write(stream)
    story.finish(make)


def value_of(stream: str, record: dict[str, Any]) -> int | None:
    if stream == "clusters":
        histogram = record.get("train/value")
        return None if isinstance(histogram, (int, type(None))) else histogram.histogram[0]
    value = record.get("train/value" if stream == "metrics" else "eval/value")
    return value if isinstance(value, int) else None


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_wandb_gets_every_line_once_and_in_order(actions: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder))
        far, run = story.far, story.run
        monkeypatch.setattr(wandb_sink, "open_run", lambda *_: far)
        monkeypatch.setattr(wandb_sink.WandbSink, "_ask_last_number", lambda _: len(far.there))
        monkeypatch.setattr(wandb_sink, "ASK_SECONDS", 0.0)
        patience = Patience(1e6, lambda: None, lambda: None)
        play(
            story,
            actions,
            lambda: wandb_sink.WandbSink(run.paths, run.to, StateFile(run.paths), RunLines(run.paths), patience, print),
        )
        for stream in STREAMS:
            values = [value for record in far.there if (value := value_of(stream, record)) is not None]
            kept = [value for _, value in story.written[stream]]
            assert values == sorted(set(values))  # each is written once, and none is sent twice
            assert set(kept) <= set(values)


@settings(max_examples=25)
@given(actions=ACTIONS)
def test_tensorboard_shows_every_line_once_and_in_order(actions: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder))
        run = story.run
        play(story, actions, lambda: TensorboardSink(run.to.tensorboard, StateFile(run.paths), RunLines(run.paths)))
        board = EventAccumulator(run.to.tensorboard, size_guidance={"histograms": 0})
        board.Reload()
        for stream, tag in (("metrics", "train/value"), ("evaluations", "eval/value")):
            shown = [(one.step, int(one.value)) for one in (board.Scalars(tag) if story.written[stream] else [])]
            assert shown == story.written[stream]
        if story.written["clusters"]:
            shown = [(one.step, int(one.histogram_value.num)) for one in board.Histograms("train/value")]
            assert shown == story.written["clusters"]
