"""The oracle of the laboratory's second study: a feature that is the known mistake itself, equal if it is the same.

    meds.features.function: studies/known_mistake.py, with meds.memory.preset: equal

Two wrong responses to a problem have equal vectors if the same mistake explains them (`analysis.mistakes`), or, if none
or several may, if their answers are equal. A response without an answer has no vector.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # in processes that Ray starts elsewhere

from analysis.mistakes import explain, expression_of, kinds_of
from meds_openrlhf.arithmetic.problems import TOGETHER
from meds_openrlhf.features.answer import answer_in
from meds_openrlhf.features.final_answer import answer_row


def from_texts(prompts: Sequence[str], responses: Sequence[str]) -> np.ndarray:
    """Vectors (P, 3): the number of the mistake, from 1, and zeros; or 0, and two numbers of the answer."""
    return np.array([_vector(prompt, response) for prompt, response in zip(prompts, responses)], np.float32)


def _vector(prompt: str, response: str) -> tuple[float, ...]:
    answer = answer_in(response)
    if answer is None:
        return np.nan, np.nan, np.nan
    expression = expression_of(prompt)
    kind = explain(expression, answer, response, TOGETHER).kind
    if kind is None:
        return 0, *answer_row(answer)
    return 1 + [*kinds_of(expression, TOGETHER).values()].index(kind), 0, 0
