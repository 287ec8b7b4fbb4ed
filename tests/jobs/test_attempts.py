"""Another attempt follows a failure that it may mend, and no other end."""

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.jobs.attempts import attempts
from meds_openrlhf.jobs.log_stream import End, Ending

FAILED = Ending(End.FAILED, 1, "exit code 1")
DONE = Ending(End.SUCCEEDED, 0, "exit code 0")


class Story:
    """The endings of the attempts that are made, in order, and what was said and done."""

    def __init__(self, *endings: Ending | ConfigError) -> None:
        self.endings = list(endings)
        self.submitted: list[int] = []
        self.said: list[str] = []
        self.waits = 0

    def play(self, retries: int) -> Ending:
        return attempts(self.submit, self.follow, retries, self.said.append, self.wait)

    def submit(self, attempt: int) -> str:
        self.submitted.append(attempt)
        if isinstance(self.endings[0], ConfigError):
            raise self.endings.pop(0)
        return f"x-{attempt}"

    def follow(self, name: str) -> Ending:
        return self.endings.pop(0)

    def wait(self) -> None:
        self.waits += 1


def test_one_attempt_is_enough() -> None:
    story = Story(DONE)
    assert story.play(retries=3) == DONE
    assert (story.submitted, story.waits, story.said) == ([1], 0, ["x-1 succeeded"])


def test_a_failure_is_followed_by_another_attempt() -> None:
    lost = Ending(End.LOST, None, "the head was restarted and no longer knows this job")
    story = Story(FAILED, lost, DONE)
    assert story.play(retries=2) == DONE
    assert (story.submitted, story.waits) == ([1, 2, 3], 2)
    assert story.said == [
        "x-1 failed (exit code 1); attempt 2 of 3 continues with --resume",
        "x-2 lost (the head was restarted and no longer knows this job); attempt 3 of 3 continues with --resume",
        "x-3 succeeded",
    ]


def test_attempts_run_out() -> None:
    story = Story(FAILED, FAILED)
    assert story.play(retries=1) == FAILED
    assert story.said[-1] == "x-2 failed (exit code 1)"


@pytest.mark.parametrize(
    "ending",
    [
        Ending(End.FAILED, 2, "exit code 2"),
        Ending(End.FAILED, 127, "the head knows no command `meds`"),
        Ending(End.FAILED, 130, "exit code 130"),
        Ending(End.STOPPED, None, "Job was intentionally stopped."),
        Ending(End.UNKNOWN, None, "the head has not answered for 600 s"),
    ],
)
def test_what_another_attempt_cannot_mend(ending: Ending) -> None:
    story = Story(ending)
    assert story.play(retries=3) == ending
    assert story.submitted == [1]


def test_a_refused_submission() -> None:
    with pytest.raises(ConfigError):
        Story(ConfigError("--name", "x", "is taken")).play(retries=3)
    story = Story(FAILED, ConfigError("job", "x", "is refused by the head"), DONE)
    assert story.play(retries=2) == DONE  # a head that has only just come back
    assert story.submitted == [1, 2, 3]
