"""What W&B has confirmed, through cuts and deaths."""

import threading
from dataclasses import replace

import pytest

from meds_openrlhf.tracking.sending.tracking_state import TrackingState, change_state, read_state, rewind
from tests.tracking.sending.written_run import WrittenRun


def test_the_state_is_kept_in_the_file(run: WrittenRun) -> None:
    assert read_state(run.paths) is None
    first = change_state(run.paths, lambda state: state)
    assert len(first.id) == 12
    assert read_state(run.paths) == first
    changed = TrackingState("a", "b", True, 7, {"metrics": 3}, {"global_step2": "f00"}, {"c": {"metrics": 2}})
    assert change_state(run.paths, lambda _: changed) == changed
    assert read_state(run.paths) == changed


@pytest.mark.parametrize("content", ["[1]", "{", '{"tensorboard": {}}'])
def test_a_file_with_something_else_is_said_and_stops_no_run(
    run: WrittenRun, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    run.paths.tracking.write_text(content)
    run.step(1, loss=1.0)
    run.resume(0)
    assert read_state(run.paths) is None
    assert "tracking.json holds no state of tracking" in caplog.text
    state = change_state(run.paths, lambda state: state)
    assert state.lines == {}
    assert read_state(run.paths) == state


def test_a_resumed_run_has_confirmed_no_more_than_it_has(run: WrittenRun) -> None:
    for step in (1, 2, 3):
        run.step(step, loss=1.0)
    run.clusters(3)
    sent = {"metrics": 3, "clusters": 1}
    change_state(run.paths, lambda state: replace(state, lines=sent, mlflow={"there": sent, "early": {"metrics": 1}}))
    run.resume(2)
    state = read_state(run.paths)
    assert state is not None
    assert state.lines == {"metrics": 2, "clusters": 0}
    assert state.mlflow == {"there": {"metrics": 2, "clusters": 0}, "early": {"metrics": 1}}
    run.step(3, loss=1.0)
    rewind(run.paths)
    assert read_state(run.paths) == state


def test_rewind_of_a_run_that_was_never_sent_does_nothing(run: WrittenRun) -> None:
    rewind(run.paths)
    assert not run.paths.tracking.exists()


def test_changes_from_two_sides_are_both_kept(run: WrittenRun) -> None:
    def count(name: str) -> None:
        for _ in range(20):
            change_state(run.paths, lambda one: replace(one, lines={**one.lines, name: one.lines.get(name, 0) + 1}))

    threads = [threading.Thread(target=count, args=(name,)) for name in ("metrics", "clusters")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert change_state(run.paths, lambda state: state).lines == {"metrics": 20, "clusters": 20}
