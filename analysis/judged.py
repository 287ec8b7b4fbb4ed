"""What the analyses that ask a judge have in common: showing it texts, asking, saying what is missing and what it cost.

Each draws from the texts of a run, builds a `Question` for each drawing with `Judging.question`, asks all of them at
once, and reports scores, those replies that stayed malformed left out.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.command_line import Finding
from meds_openrlhf.judge.client import Answer, JudgeClient
from meds_openrlhf.judge.question import Question, ReplyLine, shortened, tagged
from meds_openrlhf.judge.settings import JudgeSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Numbers = dict[str, Any]  # by name, as they are written


class Judging:
    """A judge, and how texts are drawn and shown to it. Raises ConfigError for a judge that cannot be asked."""

    def __init__(self, judge: JudgeSettings, seed: int, response_characters: int | None) -> None:
        self._client = JudgeClient(judge)
        self._longest = response_characters
        self.seed = seed
        self.shortened = 0  # number of texts that the judge does not see whole

    def question(
        self, rubric: str, reply: tuple[ReplyLine, ...], given: Mapping[str, str], responses: Mapping[str, str]
    ) -> tuple[Question, int]:
        """A question about ``responses``, by tag, after ``given`` texts; and how many responses are shortened."""
        longest = self._longest
        cut = sum(longest is not None and len(text) > longest for text in responses.values())
        self.shortened += cut
        material = [tagged(tag, text) for tag, text in given.items()]
        material += [tagged(tag, shortened(text, longest)) for tag, text in responses.items()]
        return Question(rubric, "\n\n".join(material), reply), cut

    def ask(self, questions: Sequence[Question], notes: Iterable[str]) -> list[Answer | None]:
        """Say what is missing, and let the judge answer; None for replies that stayed malformed.

        Raises ConfigError if the judge refuses or does not answer, or if the budget is used up.
        """
        for note in notes:
            print(note, file=sys.stderr)
        return self._client.ask_all(questions)

    def finding(self, tables: str, numbers: Mapping[str, object], figure: Figure) -> Finding:
        """The finding, with the seed, the judge, and its cost."""
        text = f"{tables}\n\n{self._client.cost_line()} {self.shortened} responses were shown without their middle."
        return Finding(text, {**numbers, "seed": self.seed, "judge": self._client.settings.facts()}, figure)


def mean_and_error(scores: Sequence[int]) -> tuple[float | None, float | None]:
    """The mean of scores and its standard error, None if there are too few."""
    mean = statistics.fmean(scores) if scores else None
    return mean, statistics.stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else None
