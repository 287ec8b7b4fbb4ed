"""What a session does where W&B takes less than it is given."""

from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf.files import write_atomically
from meds_openrlhf.tracking.sending import wandb_session
from meds_openrlhf.tracking.sending.run_lines import RewoundError
from meds_openrlhf.tracking.sending.wandb_session import StalledError, WandbSession
from tests.tracking.sending.far_side import FarSide
from tests.tracking.sending.written_run import WrittenRun


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> FarSide:
    side = FarSide()
    monkeypatch.setattr(wandb_session, "open_run", side.open)
    monkeypatch.setattr(wandb_session, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(WandbSession, "_records_at_wandb", lambda _: len(side.there))
    return side


def session_of(run: WrittenRun, said: list[str] | None = None, **environment: str) -> WandbSession:
    return WandbSession(run.paths, run.config, environment, [].append if said is None else said.append)


def send(session: WandbSession) -> None:
    while session.send_new():
        pass


def losses(records: list[dict[str, Any]]) -> list[float]:
    return [record["train/loss"] for record in records]


def test_only_what_wandb_has_counts_as_sent(run: WrittenRun, far: FarSide) -> None:
    for step in (1, 2):
        run.step(step, loss=float(step))
    killed = session_of(run)
    send(killed)
    run.step(3, loss=3.0)
    send(killed)
    far.arrive(2)
    send(killed)
    assert run.state()["lines"] == {"metrics": 2}
    again = session_of(run)
    send(again)
    assert losses(far.on_the_way) == [3.0]
    again.finish()
    assert losses(far.there) == [1.0, 2.0, 3.0]
    assert run.state()["lines"] == {"metrics": 3}


def test_a_session_whose_records_do_not_arrive_is_given_up(
    run: WrittenRun, far: FarSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.step(1, loss=1.0)
    session = session_of(run)
    send(session)
    monkeypatch.setattr(wandb_session, "STALLED_SECONDS", -1.0)
    with pytest.raises(StalledError):
        session.send_new()


def test_a_wandb_that_does_not_answer_is_waited_for(
    run: WrittenRun, far: FarSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb_session, "STALLED_SECONDS", -1.0)
    answers: list[int | None] = [None, None, 1]
    monkeypatch.setattr(WandbSession, "_records_at_wandb", lambda _: answers.pop(0))
    run.step(1, loss=1.0)
    session = session_of(run)
    assert session.send_new()
    since = session.waiting_since
    assert since is not None
    session.send_new()
    assert session.waiting_since == since
    session.send_new()
    assert session.waiting_since is None
    assert run.state()["lines"] == {"metrics": 1}


def test_what_finish_could_not_upload_is_not_sent(
    run: WrittenRun, far: FarSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far, "finish", lambda: None)
    monkeypatch.setattr(wandb_session, "CONFIRM_SECONDS", -1.0)
    run.step(1, loss=1.0)
    session = session_of(run)
    send(session)
    with pytest.raises(StalledError):
        session.finish()
    assert run.state()["lines"] == {}


def test_wandb_is_asked_whether_it_is_there_while_it_takes_long_to_close(
    run: WrittenRun, far: FarSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.step(1, loss=1.0)
    session = session_of(run)
    send(session)
    assert not session.still_answers()  # a late answer to anything else is silence
    monkeypatch.setattr(wandb_session, "ASK_SECONDS", 60.0)
    asked: list[int] = []

    def finish() -> None:
        far.arrive(1)
        assert session.waiting_since is not None
        monkeypatch.setattr(WandbSession, "_records_at_wandb", lambda _: asked.append(1) or 1)
        assert all(session.still_answers() for _ in range(5))
        assert len(asked) == 1  # not a question each time

    monkeypatch.setattr(far, "finish", finish)
    session.finish()
    assert session.waiting_since is None


def test_another_project_gets_everything_even_when_the_first_try_is_killed(
    run: WrittenRun, far: FarSide, snapshot: Path
) -> None:
    run.step(1, loss=1.0)
    first = session_of(run)
    send(first)
    first.finish()
    far.there.clear()
    run.step(2, loss=2.0)
    send(session_of(run))
    assert losses(far.on_the_way) == [1.0, 2.0]
    far.arrive(1)
    far.on_the_way.clear()  # killed
    last = session_of(run)
    send(last)
    last.finish()
    assert losses(far.there) == [1.0, 1.0, 2.0]
    assert len(far.artifacts) == 3
    assert run.state()["lines"] == {"metrics": 2}


def test_a_late_confirmation_is_waited_for(run: WrittenRun, far: FarSide, monkeypatch: pytest.MonkeyPatch) -> None:
    run.step(1, loss=1.0)
    session = session_of(run)
    send(session)
    answers: list[int | None] = [None, 0, 1]
    monkeypatch.setattr(WandbSession, "_records_at_wandb", lambda _: answers.pop(0))
    monkeypatch.setattr(wandb_session.time, "sleep", lambda _: None)
    session.finish()
    assert answers == []
    assert run.state()["lines"] == {"metrics": 1}


def test_a_session_of_a_run_that_was_resumed_confirms_nothing(run: WrittenRun, far: FarSide) -> None:
    for step in (1, 2):
        run.step(step, loss=float(step))
    session = session_of(run)
    send(session)
    run.resume(1)
    far.arrive(2)
    with pytest.raises(RewoundError):
        session.send_new()
    with pytest.raises(RewoundError):
        session.finish()
    assert run.state()["lines"] == {}


def test_snapshots_are_sent_once(run: WrittenRun, far: FarSide, snapshot: Path) -> None:
    session = session_of(run)
    send(session)
    assert far.artifacts == [("memory-run", ["latest", "global_step2"])]
    write_atomically(snapshot, snapshot.read_bytes() + b" ")  # the run was resumed, and saved the same step again
    send(session)
    assert len(far.artifacts) == 2
    session.finish()
    assert not session_of(run).send_new()


def test_a_snapshot_that_cannot_be_sent_is_said_and_holds_nothing_up(
    run: WrittenRun, far: FarSide, snapshot: Path
) -> None:
    run.configure("  tracking: {snapshots: upload}\n")
    (run.paths.memory.root / "shard-0000/000001.arrow").unlink()
    run.step(1, loss=1.0)
    said: list[str] = []
    session = session_of(run, said)
    send(session)
    session.finish()
    assert losses(far.there) == [1.0]
    (line,) = said
    assert line.startswith("the memory's snapshot global_step2 is not sent to W&B: [Errno 2]")


def test_snapshots_are_left_out_where_the_run_says_so(run: WrittenRun, far: FarSide, snapshot: Path) -> None:
    run.configure("  tracking: {snapshots: none}\n")
    assert not session_of(run).send_new()


def test_what_an_offline_session_wrote_is_sent_when_there_is_a_network(run: WrittenRun, far: FarSide) -> None:
    run.step(1, loss=1.0)
    offline = session_of(run, WANDB_MODE="offline")
    offline.send_new()
    assert run.state()["lines"] == {}  # the client has until the next look to write it
    offline.send_new()
    assert run.state()["lines"] == {"metrics": 1}
    assert not session_of(run, WANDB_MODE="offline").send_new()
    online = session_of(run)
    send(online)
    assert losses(far.on_the_way) == [1.0]


def test_the_environment_may_name_a_run_that_has_no_id(run: WrittenRun) -> None:
    session_of(run, WANDB_RUN_ID="mine")
    session_of(run, WANDB_RUN_ID="another")
    assert run.state()["wandb_id"] == "mine"


def test_without_a_name_the_id_is_kept(run: WrittenRun) -> None:
    session_of(run)
    first = run.state()["wandb_id"]
    session_of(run)
    assert first == run.state()["wandb_id"] == run.state()["id"]
