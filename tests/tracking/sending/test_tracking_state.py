"""What was handed on, through cuts and deaths."""

import json
import threading
from dataclasses import replace

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.tracking.sending.tracking_state import Handed, SentBackError, StateFile, TrackingState, rewind
from tests.tracking.sending.written_run import WrittenRun


def handed(*moves: str) -> Handed:
    result = Handed()
    for stream in moves:
        result = result.with_record(**{stream: result.positions.get(stream, 0) + 1})
    return result


def test_a_record_counts_as_handed_and_not_as_settled() -> None:
    three = handed("metrics", "clusters", "metrics")
    assert (three.settled, three.next, three.positions) == (0, 3, {"metrics": 2, "clusters": 1})


def test_what_wandb_has_is_settled() -> None:
    two_of_three = handed("metrics", "clusters", "metrics").settle(2)
    assert (two_of_three.settled, two_of_three.next) == (2, 3)
    assert two_of_three.before == ({"metrics": 1, "clusters": 1}, {"metrics": 2, "clusters": 1})
    assert two_of_three.settle(1) == two_of_three
    assert two_of_three.settle(9).before == ({"metrics": 2, "clusters": 1},)


def test_a_new_session_hands_again_what_wandb_lacks() -> None:
    three = handed("metrics", "clusters", "metrics")
    assert three.go_on_at(1) == Handed(1, ({"metrics": 1},))
    assert three.go_on_at(3) == Handed(3, ({"metrics": 2, "clusters": 1},))


def test_a_run_that_has_more_than_was_handed_is_gone_on_with() -> None:
    assert handed("metrics").go_on_at(5) == Handed(5, ({"metrics": 1},))


def test_another_run_gets_everything() -> None:
    settled = handed("metrics", "metrics", "metrics").settle(3)
    assert settled.go_on_at(0) == Handed(0, ({},))


def test_after_a_cut_no_session_begins_behind_it() -> None:
    cut = handed("metrics", "metrics", "metrics").sent_back({"metrics": 1})
    assert cut.next == 3
    assert [cut.go_on_at(taken).positions for taken in (0, 1, 2, 3)] == [
        {}, {"metrics": 1}, {"metrics": 1}, {"metrics": 1},
    ]  # fmt: skip


def test_the_state_is_kept_in_the_file(run: WrittenRun) -> None:
    state = StateFile(run.paths)
    assert state.read() == TrackingState()
    changed = TrackingState(2, {"metrics": 3}, 4, "abc", handed("metrics", "clusters"), {"global_step2": "f00"})
    state.change(lambda _: changed)
    assert StateFile(run.paths).read() == changed


def test_a_file_with_something_else_is_named(run: WrittenRun) -> None:
    run.paths.tracking.write_text("[1]")
    with pytest.raises(ConfigError, match=r"tracking\.json' holds no state of tracking .* remove it"):
        StateFile(run.paths).read()


def test_rewind_sends_both_back_to_the_step(run: WrittenRun) -> None:
    for step in (1, 2, 3):
        run.step(step, loss=1.0)
    run.clusters(1)
    run.clusters(3)
    sent = handed("metrics", "clusters", "metrics", "clusters", "metrics", "biggest", "biggest")
    state = StateFile(run.paths)
    state.change(lambda one: replace(one, tensorboard={"metrics": 3, "clusters": 1}, wandb=sent))
    rewind(run.paths, 2)
    after = state.read()
    assert (after.tensorboard, after.tensorboard_again_from) == ({"metrics": 2, "clusters": 1}, 3)
    assert after.wandb.positions == {"metrics": 2, "clusters": 1, "biggest": 1}
    rewind(run.paths, 5)
    assert (state.read().tensorboard["metrics"], state.read().tensorboard_again_from) == (2, 3)


def test_rewind_of_a_run_that_was_never_sent_does_nothing(run: WrittenRun) -> None:
    rewind(run.paths, 2)
    assert not run.paths.tracking.exists()


def test_who_was_sent_back_changes_nothing(run: WrittenRun) -> None:
    run.step(1, loss=1.0)
    state = StateFile(run.paths)
    before = state.change(lambda one: replace(one, tensorboard={"metrics": 1}))
    rewind(run.paths, 0)
    with pytest.raises(SentBackError):
        state.change(lambda one: replace(one, tensorboard={"metrics": 9}), of=before.times_sent_back)
    assert state.read().tensorboard == {"metrics": 0}


def test_changes_from_two_sides_are_both_kept(run: WrittenRun) -> None:
    def count(name: str) -> None:
        state = StateFile(run.paths)
        for _ in range(20):
            state.change(
                lambda one: replace(one, tensorboard={**one.tensorboard, name: one.tensorboard.get(name, 0) + 1})
            )

    threads = [threading.Thread(target=count, args=(name,)) for name in ("metrics", "clusters")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert StateFile(run.paths).read().tensorboard == {"metrics": 20, "clusters": 20}


def test_the_id_of_the_run_is_kept(run: WrittenRun) -> None:
    first = StateFile(run.paths).run_id(None)
    assert len(first) == 12
    assert StateFile(run.paths).run_id("another") == first
    assert json.loads(run.paths.tracking.read_text())["wandb_id"] == first
