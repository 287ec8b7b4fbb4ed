"""The rollouts of a log as visits of prompts, in the order of time, with what came before each of them.

A visit is all responses to a prompt in a step. What was given or solved *before* is of the prompt's earlier visits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.data.prompt_texts import without_template
from meds_openrlhf.features.final_answer import form_codes
from meds_openrlhf.memory.log import all_steps
from meds_openrlhf.memory.stored import has_memory, open_memory
from meds_openrlhf.memory.successes import Successes, Visit
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.run import NONE, codes_of, logged_rollouts


@dataclass(frozen=True)
class Visits:
    """n rollouts of V visits, ordered by step, then by prompt; those of visit v are at offsets[v] to offsets[v + 1].

    Prompts and answers are numbers; answers of the same form have the same number, and NONE is no answer.
    """

    step: NDArray[np.int64]  # (V,)
    prompt: NDArray[np.int64]  # (V,)
    offsets: NDArray[np.int64]  # (V + 1,)
    answer: NDArray[np.int64]  # (n,)
    correct: NDArray[np.bool_]  # (n,)
    reward: NDArray[np.float64]  # (n,), without a memory
    stored: NDArray[np.int64]  # (n,): the size of the rollout's cluster in the run's memory, 0 without one
    prompts: list[str]  # keys
    texts: list[str]  # of the prompts
    remembered: Mapping[int, Mapping[str, Visit]] = field(default_factory=dict)  # by step and key, of the run's memory

    @cached_property
    def size(self) -> NDArray[np.int64]:
        """The number (V,) of responses."""
        return np.diff(self.offsets)

    @cached_property
    def visit(self) -> NDArray[np.int64]:
        """The visit (n,) of each rollout."""
        return np.repeat(np.arange(len(self.step)), self.size)

    @cached_property
    def number(self) -> NDArray[np.int64]:
        """How many earlier visits the prompt of each visit (V,) has."""
        return np.asarray(pd.Series(self.prompt).groupby(self.prompt).cumcount(), np.int64)

    @cached_property
    def right(self) -> NDArray[np.int64]:
        """The number (V,) of right responses."""
        return np.add.reduceat(self.correct.astype(np.int64), self.offsets[:-1])

    @cached_property
    def wrong_answer(self) -> NDArray[np.bool_]:
        """Whether (n,) a response has a final answer, and is wrong."""
        return np.asarray(~self.correct & (self.answer != NONE))

    @cached_property
    def come_back(self) -> bool:
        """Whether any prompt was visited twice; without, nothing can be said of time."""
        return bool((self.number > 0).any())

    @cached_property
    def given_before(self) -> NDArray[np.int64]:
        """How often (n,) a response's answer was given to its prompt before, with the same verdict; 0 without one."""
        keys = {"prompt": self.prompt[self.visit], "correct": self.correct, "answer": self.answer}
        given = pd.DataFrame({**keys, "visit": self.visit}).query(f"answer != {NONE}")
        in_visit = given.groupby([*keys, "visit"]).size()
        before = in_visit.groupby([*keys]).cumsum() - in_visit
        counts = np.zeros(len(self.answer), np.int64)
        counts[given.index] = given.join(before.rename("before"), on=[*keys, "visit"])["before"]
        return counts

    @cached_property
    def success(self) -> NDArray[np.float64]:
        """The success (V,) that the run's memory remembered, or would have, from the earlier visits; 0 at the first.

        The run's own knows groups that dynamic filtering dropped, which are in no log.
        """
        found, memory = np.zeros(len(self.step)), Successes()
        rows = zip(self.step.tolist(), self.prompt.tolist(), self.right.tolist(), self.size.tolist())
        for place, (step, prompt, right, size) in enumerate(rows):
            key = self.prompts[prompt]
            visits = memory.visits_of({key: (right, size)})
            memory.add(visits)
            found[place] = self.remembered.get(step, visits).get(key, visits[key]).success or 0.0
        return found

    @cached_property
    def solved_before(self) -> NDArray[np.bool_]:
        """Whether (V,) most responses were right in most of the prompt's earlier visits; not at the first one."""
        was_solved = pd.Series(2 * self.right > self.size).astype(np.int64)
        before = np.asarray(was_solved.groupby(self.prompt).cumsum() - was_solved)
        return np.asarray(2 * before > self.number)


def read_visits(run: Path) -> Visits:
    """Read the visits of a run's log. Raises ConfigError if the run or its log does not exist or cannot be read."""
    table = logged_rollouts(run, ("answer", "reward", "cluster_size", "prompt_text"))
    prompt, prompts = codes_of(table["prompt"])
    sent = table["prompt_text"].take(pa.array(np.unique(prompt, return_index=True)[1])).to_pylist()
    shown = without_template(dict(zip(prompts, sent)))
    codes, answers = codes_of(table["answer"])
    form = form_codes(answers)
    step = table["step"].to_numpy().astype(np.int64)
    order = np.lexsort((prompt, step))
    step, prompt, codes = step[order], prompt[order], codes[order]
    correct, reward, stored = (table[name].to_numpy()[order] for name in ("correct", "reward", "cluster_size"))
    begins = np.flatnonzero(np.concatenate([[True], (np.diff(step) != 0) | (np.diff(prompt) != 0)]))
    return Visits(
        step=step[begins],
        prompt=prompt[begins],
        offsets=np.append(begins, len(step)),
        answer=np.where(codes == NONE, NONE, form[codes]) if len(form) else codes,
        correct=correct,
        reward=reward.astype(np.float64),
        stored=stored.astype(np.int64),
        prompts=prompts,
        texts=[shown[key] for key in prompts],
        remembered=_remembered(RunPaths(run)),
    )


def _remembered(run: RunPaths) -> dict[int, dict[str, Visit]]:
    if not has_memory(run):
        return {}
    memory = open_memory(run.root)
    return {stored.step: stored.visits for stored in all_steps(memory.paths, memory.schema)}
