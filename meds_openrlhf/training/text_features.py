"""Rows for a memory of features that a function of the user's computes from texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from openrlhf.trainer.ppo_utils.experience import Experience

from meds_openrlhf.features.function import FeatureFunction
from meds_openrlhf.training.samples import in_order, responses_of


class TextFeatures:
    """Calls the function with the prompts and responses of a step."""

    def __init__(self, tokenizer: Any, function: FeatureFunction) -> None:
        self._tokenizer = tokenizer
        self._function = function

    def rows_of(
        self, experiences: Sequence[Experience], _recorded: object
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return which samples can have a feature (n,), all of them, and the rows (n, d), in the order of the index."""
        prompts = in_order(experiences, [batch.prompts for batch in experiences])
        tokens = in_order(experiences, [[ids for ids, _ in responses_of(batch)] for batch in experiences])
        responses = self._tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return np.ones(len(prompts), bool), self._function(len(prompts), prompts, responses)
