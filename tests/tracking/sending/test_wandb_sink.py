"""What the sink does where W&B takes less than it is given."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf.tracking.sending import wandb_sink
from meds_openrlhf.tracking.sending.follower import follow
from meds_openrlhf.tracking.sending.patience import Patience
from meds_openrlhf.tracking.sending.run_lines import RunLines
from meds_openrlhf.tracking.sending.tracking_state import SentBackError, StateFile
from meds_openrlhf.tracking.sending.wandb_sink import StalledError, WandbSink
from tests.tracking.sending.far_side import FarSide
from tests.tracking.sending.written_run import WrittenRun


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> FarSide:
    side = FarSide()
    monkeypatch.setattr(wandb_sink, "open_run", lambda *_: side)
    monkeypatch.setattr(wandb_sink, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(WandbSink, "_ask_last_number", lambda _: len(side.there))
    return side


def sink_of(run: WrittenRun, said: list[str]) -> WandbSink:
    def say(line: str, well: bool | None) -> None:
        assert well is None
        said.append(line)

    patience = Patience(1e6, lambda: None, lambda: None)
    return WandbSink(run.paths, run.to, StateFile(run.paths), RunLines(run.paths), patience, say)


def losses(records: list[dict[str, Any]]) -> list[float]:
    return [record["train/loss"] for record in records]


def test_no_more_is_on_the_way_than_the_client_shall_hold(
    run: WrittenRun, far: FarSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb_sink, "ON_THE_WAY", 2)
    for step in (1, 2, 3, 4, 5):
        run.step(step, loss=float(step))
    sink = sink_of(run, [])
    while sink.hand_new():
        pass
    assert losses(far.on_the_way) == [1.0, 2.0]
    far.arrive(1)
    sink.hand_new()
    sink.hand_new()
    assert losses(far.on_the_way) == [2.0, 3.0]
    assert not sink.finish()  # of five lines, three
    far.starting_step = len(far.there)
    again = sink_of(run, [])
    while again.hand_new(last=True):
        far.arrive(9)
    assert again.finish()
    assert losses(far.there) == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_session_whose_records_do_not_arrive_is_given_up(
    run: WrittenRun, far: FarSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb_sink, "STALLED_SECONDS", 0.0)
    run.step(1, loss=1.0)
    sink = sink_of(run, [])
    with pytest.raises(StalledError):
        follow(sink, threading.Event(), poll_seconds=0.001)


def test_what_finish_could_not_upload_is_not_sent(
    run: WrittenRun, far: FarSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far, "finish", lambda: None)
    run.step(1, loss=1.0)
    sink = sink_of(run, [])
    while sink.hand_new(last=True):
        pass
    assert not sink.finish()
    assert StateFile(run.paths).read().wandb.settled == 0


def test_a_table_whose_lines_are_just_being_cut_waits(run: WrittenRun, far: FarSide) -> None:
    run.clusters(1)
    sink = sink_of(run, [])
    while sink.hand_new():
        pass
    run.logs["clusters"].cut_after(0)
    assert not sink.hand_new(last=True)
    assert len(far.on_the_way) == 1  # the histograms alone
    run.resume(0)
    run.clusters(1)
    with pytest.raises(SentBackError):
        sink.hand_new(last=True)


def test_a_wandb_that_answers_while_it_takes_long_is_not_called_silent(
    run: WrittenRun, far: FarSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[str] = []
    sink = sink_of(run, [])
    monkeypatch.setattr(wandb_sink, "ASK_SECONDS", 0.01)
    monkeypatch.setattr(sink, "_patience", Patience(1e6, lambda: None, lambda: answers.append("there")))
    uploaded = threading.Event()
    monkeypatch.setattr(WandbSink, "_ask_last_number", lambda _: uploaded.set() or 0 if answers else len(far.there))
    run.step(1, loss=1.0)
    while sink.hand_new():
        pass
    monkeypatch.setattr(far, "finish", lambda: far.arrive(1) if uploaded.wait(30) else None)
    sink.finish()
    assert losses(far.there) == [1.0]


def test_snapshots_are_sent_once_in_a_session(run: WrittenRun, far: FarSide, snapshot: Path) -> None:
    sink = sink_of(run, [])
    while sink.hand_new():
        pass
    assert far.artifacts == [("memory-run", ["latest", "global_step2"])]
    snapshot.write_bytes(snapshot.read_bytes() + b" ")  # the run was resumed, and saved the same step again
    while sink.hand_new():
        pass
    assert len(far.artifacts) == 2
    assert sink.finish()
    assert not sink_of(run, []).hand_new()


def test_a_snapshot_that_cannot_be_sent_is_said_and_holds_nothing_up(
    run: WrittenRun, far: FarSide, snapshot: Path
) -> None:
    run.to = replace(run.to, snapshots="upload")
    (run.paths.memory.root / "shard-0000/000001.arrow").unlink()
    run.step(1, loss=1.0)
    said: list[str] = []
    sink = sink_of(run, said)
    while sink.hand_new():
        pass
    assert sink.finish()
    assert losses(far.there) == [1.0]
    (line,) = said
    assert line.startswith("the memory's snapshot global_step2 is not sent to W&B: [Errno 2]")


def test_snapshots_are_left_out_where_the_run_says_so(run: WrittenRun, far: FarSide, snapshot: Path) -> None:
    run.to = replace(run.to, snapshots="none")
    assert not sink_of(run, []).hand_new()


def test_what_went_to_files_offline_is_sent_when_there_is_a_network(
    run: WrittenRun, far: FarSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.step(1, loss=1.0)
    monkeypatch.setenv("WANDB_MODE", "offline")
    offline = sink_of(run, [])
    offline.hand_new()
    offline.hand_new()
    assert offline.finish()
    assert not sink_of(run, []).hand_new(last=True)
    monkeypatch.delenv("WANDB_MODE")
    far.there.clear()
    online = sink_of(run, [])
    online.hand_new()
    online.hand_new()
    assert losses(far.on_the_way) == [1.0]
