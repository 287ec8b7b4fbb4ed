"""Problems of reasoning-gym, made again from their labels in the processes of `AnswerVerifier`, and scored there."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from meds_openrlhf.gym.label import AGAIN, GymLabel, read_label
from meds_openrlhf.runtime.verifier import AnswerVerifier

MAKING_SECONDS = 60.0  # of CPU time; some problems take five
_examiners = AnswerVerifier("meds_openrlhf.gym.tasks", remembered=2048)


class TaskRefusedError(ValueError):
    """reasoning-gym has no such task, or the task refuses its settings, for a ``reason``."""

    def __init__(self, task: str, reason: str) -> None:
        super().__init__(f"reasoning-gym refuses {task} ({reason})")
        self.reason = reason


@dataclass(frozen=True)
class GymProblem:
    """A problem: its ``answer`` is None if the task has none; ``entry`` is for the scorer alone."""

    label: GymLabel
    text: str  # of the label
    question: str
    answer: str | None
    digest: str
    entry: str

    def is_right(self, answer: str) -> bool:
        """Whether the answer reaches the label's threshold by the task's own scorer, within its time and memory."""
        score = _examiners.ask("score", self.text, self.entry, answer)
        return score is not None and score >= self.label.threshold


@functools.lru_cache(1024)
def made_of(text: str) -> GymProblem:
    """Make the problem of a label, given as text.

    Raises TaskRefusedError, or ValueError if the text is not a label, or if its problem cannot be made or differs from
    the label's digest.
    """
    label = read_label(text)
    beyond = {"failed": f"it takes more than {MAKING_SECONDS:.0f} s, or too much memory"}
    made = _examiners.ask("make", text, seconds=MAKING_SECONDS) or beyond
    if "refused" in made:
        raise TaskRefusedError(label.task, made["refused"])
    if "failed" in made:
        raise ValueError(f"problem {label.index} of {label.task} cannot be made: {made['failed']}")
    if label.digest not in ("", made["digest"]):
        raise ValueError(f"problem {label.index} of {label.task} is another one in this reasoning-gym. {AGAIN}")
    return GymProblem(label, text, **made)


def require_made(labels: Mapping[str, str]) -> None:
    """Raise ValueError, as `made_of` does, unless all are labels and the first one's problem can be made.

    ``labels`` are texts by where they stand, such as "row 3", which the message begins with.
    """
    for place, text in labels.items():
        try:
            read_label(text)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
    for text in [*labels.values()][:1]:
        made_of(text)
