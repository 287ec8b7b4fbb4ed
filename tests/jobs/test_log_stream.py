"""A job is followed to its end: every character once, whatever breaks on the way."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from ray.job_submission import JobStatus

from meds_openrlhf.jobs.log_stream import End, Ending, Follower
from tests.jobs.fake_head import DONE, GONE, RUNNING, UNKNOWN, FakeHead, Info


def follow(head: FakeHead, patience: float = 60) -> tuple[Ending, str, list[str]]:
    written: list[str] = []
    said: list[str] = []
    ending = Follower(head, written.append, said.append, patience=patience, pause=0.01, quiet=0.05).follow("x")
    return ending, "".join(written), said


def test_a_log_read_in_one_go() -> None:
    ending, log, said = follow(FakeHead([["step 1\n", "step 2\n"]], [DONE], "step 1\nstep 2\n"))
    assert ending == Ending(End.SUCCEEDED, 0, "exit code 0")
    assert (log, said, ending.exit_code) == ("step 1\nstep 2\n", [], 0)


def test_a_connection_that_breaks_repeats_nothing_and_loses_nothing() -> None:
    connections = [["step 1\n", "ste", GONE], ["step 1\nstep 2\n", GONE], ["step 1\nstep 2\nstep 3\n"]]
    head = FakeHead(connections, [RUNNING, RUNNING, DONE], "step 1\nstep 2\nstep 3\nlast\n")
    ending, log, _ = follow(head)
    assert ending.end is End.SUCCEEDED
    assert log == "step 1\nstep 2\nstep 3\nlast\n"  # the last line is only in the whole log


def test_a_log_that_ends_before_the_job_does_is_opened_again() -> None:
    _, log, _ = follow(FakeHead([["a\n"], ["a\nb\n"]], [RUNNING, DONE], "a\nb\n"))
    assert log == "a\nb\n"


def test_a_head_that_goes_away_and_comes_back() -> None:
    ending, log, said = follow(FakeHead([["a\n", GONE], [GONE], ["a\nb\n"]], [GONE, GONE, DONE], "a\nb\n"))
    assert (ending.end, log) == (End.SUCCEEDED, "a\nb\n")
    assert said == ["the head does not answer; trying again for 60 s", "the head answers again"]


def test_a_head_that_stays_away() -> None:
    ending, _, _ = follow(FakeHead([], [GONE]), patience=0.05)
    assert (ending.end, ending.exit_code) == (End.UNKNOWN, 69)


def test_a_head_that_was_started_anew() -> None:
    ending, _, _ = follow(FakeHead([], [GONE, UNKNOWN]))
    assert (ending.end, ending.exit_code) == (End.LOST, 1)


class SilentHead(FakeHead):
    """Its connection is dead without having been closed."""

    async def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
        yield "a\n"
        await asyncio.sleep(3600)


def test_a_connection_that_is_dead_is_noticed() -> None:
    # The questions about the job: two while the connection is silent, the second without answer; then its end.
    ending, log, _ = follow(SilentHead([], [RUNNING, GONE, DONE], "a\nb\n"))
    assert (ending.end, log) == (End.SUCCEEDED, "a\nb\n")


@pytest.mark.parametrize(
    ("info", "exit_code", "reason"),
    [
        (Info(JobStatus.FAILED, 2), 2, "exit code 2"),
        (Info(JobStatus.FAILED, -9), 137, "killed"),
        (Info(JobStatus.FAILED, 137), 137, "killed"),
        (Info(JobStatus.FAILED, None, "Job supervisor actor died: node\nlost"), 1, "Job supervisor actor died: node"),
        (Info(JobStatus.FAILED, 127), 127, "the head knows no command `meds`"),
        (Info(JobStatus.STOPPED, None, "Job was intentionally stopped."), 143, "Job was intentionally stopped."),
    ],
)
def test_how_it_ended(info: Info, exit_code: int, reason: str) -> None:
    ending, _, _ = follow(FakeHead([[]], [info], "log"))
    assert ending.exit_code == exit_code
    assert ending.reason.startswith(reason)
