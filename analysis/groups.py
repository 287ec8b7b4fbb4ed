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
    def notes(self) -> list[str]:
        """A message about what is left out, if anything is."""
        note = (
            f"{self.run}: {self.without_text} of {self.rollouts} rollouts have no text in the log; "
            f"{self.steps_left_out} steps without all their texts are left out"
        )
        return [note] if self.without_text else []


def index_groups(run: Path) -> GroupIndex:
    """Index a run's log. Raises ConfigError if there is none, or no step has all its texts."""
    sizes: dict[int, dict[str, int]] = {}
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
    return GroupIndex(run, sizes, rollouts, without_text, left_out)


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
