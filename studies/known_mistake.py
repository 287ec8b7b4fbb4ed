"""The oracle of the laboratory's second study: a feature that is the known mistake itself, equal if it is the same.

    meds.features.function: studies/known_mistake.py, with meds.memory.preset: equal

Two wrong responses to a problem have equal vectors if the same mistakes may explain them (`analysis.mistakes`), or, if
none does, if their answers are equal. A response without an answer has no vector.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # in processes that Ray starts elsewhere

from analysis.mistakes import explain, expression_of
from meds_openrlhf.arithmetic.problems import MISTAKES
from meds_openrlhf.rewards.boxed import last_boxed

NAMES = [mistake.name for mistake in MISTAKES]


def from_texts(prompts: Sequence[str], responses: Sequence[str]) -> np.ndarray:
    """Vectors (P, 7): a 1 for each mistake that may explain the response; else a 1 at the sixth, and its answer."""
    rows = np.zeros((len(prompts), len(NAMES) + 2), np.float32)
    for row, prompt, response in zip(rows, prompts, responses):
        answer = last_boxed(response)
        if answer is None:
            row[:] = np.nan
            continue
        kinds = explain(expression_of(prompt), answer, response).kinds
        for name in {name for kind in kinds for name in kind.split(" / ")}:
            row[NAMES.index(name)] = 1
        if not kinds:
            row[-2:] = 1, float(sum(place * ord(letter) for place, letter in enumerate(answer[:12], 1)))
    return rows
