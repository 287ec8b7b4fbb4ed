"""Which tokens the policy generated, and the rows of a user's function of texts."""

from pathlib import Path

import numpy as np
import torch

from meds_openrlhf.features.function import FeatureFunction
from meds_openrlhf.training.step.samples import generated_tokens, rows_of_texts
from tests.training.step.rollouts import TOKENIZER, recorded_rollouts, set_texts


def test_the_mask_of_actions_is_one_token_behind() -> None:
    actions = torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1]])
    attention = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]])  # the second row ends earlier
    assert generated_tokens(actions, attention).tolist() == [
        [False, False, True, True, False],
        [False, False, True, True, False],
    ]


def test_every_sample_has_the_row_of_its_own_texts_in_the_order_of_the_index() -> None:
    asked = list[tuple[str, str]]()

    def lengths(prompts: list[str], responses: list[str]) -> np.ndarray:
        asked.extend(zip(prompts, responses))
        return np.array([[len(prompt), len(response)] for prompt, response in zip(prompts, responses)])

    samples = recorded_rollouts()[::-1]
    for number, sample in enumerate(samples):
        set_texts(sample, "1+1=", "1+" * (number + 1), [TOKENIZER.eos_token_id])
    function = FeatureFunction(Path("my.py"), "from_texts", 2, lengths)
    present, rows = rows_of_texts(TOKENIZER, function, samples, None)
    assert present.all()
    assert asked[0] == (samples[-1].prompts[0], "1+" * len(samples))
    assert rows[:, 1].tolist() == [2 * number for number in range(len(samples), 0, -1)]
