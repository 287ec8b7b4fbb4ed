"""Rows for a memory of final answers, extracted from the responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from openrlhf.trainer.ppo_utils.experience import Experience

from meds_openrlhf.config.schema import FeatureSettings
from meds_openrlhf.features.answer import AnswerLocator
from meds_openrlhf.features.final_answer import VALUES, answer_row
from meds_openrlhf.training.samples import in_order


class FinalAnswers:
    """Finds the final answer in each response of a step."""

    def __init__(self, tokenizer: Any, features: FeatureSettings) -> None:
        self._locator = AnswerLocator(tokenizer, features.answer_openings, features.answer_pattern)

    def rows_of(self, experiences: Sequence[Experience]) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return whether each sample has an answer (n,), and its row (n, 2), in the order of the samples' index.

        A sample without an answer has a row of NaN.
        """
        answers = in_order(experiences, map(self._answers, experiences))
        rows = np.full((len(answers), VALUES), np.nan, np.float32)
        for row, answer in zip(rows, answers):
            if answer is not None:
                row[:] = answer_row(answer)
        return np.array([answer is not None for answer in answers]), rows

    def _answers(self, experience: Experience) -> list[str | None]:
        """Return the answers in generated tokens; ``action_mask[t]`` refers to the token at ``t + 1``."""
        generated = experience.action_mask.bool() & experience.attention_mask[:, 1:].bool()
        return [
            self._locator.answer(ids, [False, *marked])
            for ids, marked in zip(experience.sequences.tolist(), generated.tolist())
        ]
