"""What the analyses that ask a judge have in common: they draw groups of responses, ask, and say what is missing.

A group is the responses to a prompt in a step. Only steps with the texts of all rollouts count: a log with sampled
texts has one response per prompt, verdict, cluster and answer, which is more varied than the whole group, whatever the
policy does.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from analysis.command_line import Finding
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.judge.client import Answer, JudgeClient
from meds_openrlhf.judge.question import Question, ReplyLine, shortened, tagged
from meds_openrlhf.judge.settings import JudgeSettings
from meds_openrlhf.rollouts.run import logged_steps

Numbers = dict[str, Any]  # by name, as they are written
Visit = tuple[int, str]  # (step, prompt)
Sizes = dict[int, dict[str, int]]  # the number of rollouts of each step's prompts


@dataclass(frozen=True)
class Group:
    """The responses to a prompt in a step."""

    step: int
    prompt: str
    question: str
    responses: tuple[str, ...]

    def drawn(self, most: int, generator: random.Random, tag: str) -> dict[str, str]:
        """Draw at most ``most`` of the responses, in random order, each by ``tag`` and its number."""
        drawn = generator.sample(self.responses, min(most, len(self.responses)))
        return {f"{tag} {number}": text for number, text in enumerate(drawn, 1)}


def index_groups(run: Path) -> tuple[Sizes, list[str]]:
    """The sizes of a run's groups, of steps with all texts, and a message if any others are left out.

    Raises ConfigError if there is no log, or no step has all its texts.
    """
    sizes: Sizes = {}
    rollouts = without_text = left_out = 0
    for table in logged_steps(run, ("response",)):
        missing = table["response"].null_count
        rollouts, without_text, left_out = rollouts + len(table), without_text + missing, left_out + bool(missing)
        if not missing:
            sizes[table["step"][0].as_py()] = dict(Counter(table["prompt"].to_pylist()))
    if not sizes:
        texts = f"{rollouts - without_text} of {rollouts} rollouts"
        hint = f"has the texts of only {texts}. Train with meds.tracking.rollouts: all."
        raise ConfigError("RUN", str(run), hint)
    note = f"{run}: {without_text} of {rollouts} rollouts have no text in the log; "
    return sizes, [f"{note}{left_out} steps without all their texts are left out"] if without_text else []


def read_groups(run: Path, visits: Collection[Visit]) -> dict[Visit, Group]:
    """Read the groups of these visits, with responses in the order of their samples."""
    wanted, steps = set(visits), {step for step, _ in visits}
    found: dict[Visit, Group] = {}
    for table in logged_steps(run, ("prompt_text", "response")):
        step = table["step"][0].as_py()
        for prompt, rows in table.to_pandas().groupby("prompt") if step in steps else ():
            if (step, prompt) in wanted:
                found[step, prompt] = Group(step, prompt, rows.prompt_text.iloc[0], tuple(rows.response))
    return found


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
