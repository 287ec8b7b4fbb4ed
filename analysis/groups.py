"""A run's rollouts in groups: the responses to a prompt in a step, if the log has their texts.

Only steps with the texts of all rollouts count. A log with sampled texts has one response per prompt, verdict, cluster
and answer, which is more varied than the whole group, whatever the policy does.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.runs.log import logged_steps

Visit = tuple[int, str]  # (step, prompt)


@dataclass(frozen=True)
class Group:
    """The responses to a prompt in a step."""

    step: int
    prompt: str
    question: str
    responses: tuple[str, ...]

    def drawn(self, most: int, generator: random.Random) -> tuple[str, ...]:
        """Draw at most ``most`` of the responses, in random order."""
        return tuple(generator.sample(self.responses, min(most, len(self.responses))))


@dataclass(frozen=True)
class GroupIndex:
    """The number of rollouts of each prompt in each step that has all its texts, and counts of what is left out."""

    run: Path
    sizes: dict[int, dict[str, int]]  # step -> prompt -> rollouts
    rollouts: int
    without_text: int
    steps_left_out: int

    @property
    def note(self) -> str | None:
        """A message about what is left out; None if nothing is."""
        if not self.without_text:
            return None
        return (
            f"{self.run}: {self.without_text} of {self.rollouts} rollouts have no text in the log; "
            f"{self.steps_left_out} steps without all their texts are left out"
        )


def index_groups(run: Path) -> GroupIndex:
    """Index a run's log. Raises ConfigError if there is none, or no step has all its texts."""
    sizes: dict[int, dict[str, int]] = {}
    rollouts = without_text = left_out = 0
    for table in logged_steps(run, ("response",)):
        missing = table["response"].null_count
        rollouts, without_text, left_out = rollouts + len(table), without_text + missing, left_out + bool(missing)
        if not missing:
            sizes[table["step"][0].as_py()] = dict(Counter(table["prompt"].to_pylist()))
    index = GroupIndex(run, sizes, rollouts, without_text, left_out)
    if not sizes:
        raise too_few_texts(run, rollouts - without_text, rollouts)
    return index


def read_groups(run: Path, visits: Collection[Visit]) -> dict[Visit, Group]:
    """Read the groups of these visits, with responses in the order of their samples."""
    wanted: dict[int, list[str]] = {}
    for step, prompt in set(visits):
        wanted.setdefault(step, []).append(prompt)
    found: dict[Visit, Group] = {}
    for table in logged_steps(run, ("prompt_text", "response")):
        step = table["step"][0].as_py()
        if step in wanted:
            rows = table.filter(pc.is_in(table["prompt"], pa.array(wanted[step], pa.string())))
            found.update(_grouped(step, rows))
    return found


def too_few_texts(run: Path, texts: int, rollouts: int) -> ConfigError:
    """The error for a run whose log lacks the texts that the judge would read."""
    hint = f"has the texts of only {texts} of {rollouts} rollouts. Train with meds.tracking.rollouts: all."
    return ConfigError("RUN", str(run), hint)


def _grouped(step: int, rows: pa.Table) -> dict[Visit, Group]:
    questions: dict[str, str] = {}
    responses: dict[str, list[str]] = {}
    for prompt, question, response in zip(*(rows[name].to_pylist() for name in ("prompt", "prompt_text", "response"))):
        questions[prompt] = question
        responses.setdefault(prompt, []).append(response)
    return {
        (step, prompt): Group(step, prompt, question, tuple(responses[prompt]))
        for prompt, question in questions.items()
    }
