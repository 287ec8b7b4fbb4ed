"""Features of texts: which texts the user's function gets, and which rows the memory gets."""

from pathlib import Path

import numpy as np
import torch

from meds_openrlhf.arithmetic.char_tokenizer import build_char_tokenizer
from meds_openrlhf.features.function import FeatureFunction
from meds_openrlhf.training.step.samples import TextFeatures
from tests.training.step.rollouts import recorded_rollouts


def test_every_sample_has_the_row_of_its_own_texts_in_the_order_of_the_index() -> None:
    tokenizer, asked = build_char_tokenizer(), list[tuple[str, str]]()

    def lengths(prompts: list[str], responses: list[str]) -> np.ndarray:
        asked.extend(zip(prompts, responses))
        return np.array([[len(prompt), len(response)] for prompt, response in zip(prompts, responses)])

    samples = recorded_rollouts()
    for number, sample in enumerate(samples):
        sample.index = [len(samples) - 1 - number]
        text = tokenizer.encode("1+" * (number + 1), add_special_tokens=False)
        ids = torch.tensor([[*[5] * 4, *text, tokenizer.eos_token_id]])
        sample.sequences, sample.attention_mask = ids, torch.ones_like(ids)
        sample.action_mask = torch.tensor([[0, 0, 0, *[1] * (len(text) + 1)]])
    function = FeatureFunction(Path("my.py"), "from_texts", 2, lengths)
    present, rows = TextFeatures(tokenizer, function).rows_of(samples, None)
    assert present.all()
    assert asked[0] == (samples[-1].prompts[0], "1+" * len(samples))
    assert rows[:, 1].tolist() == [2 * number for number in range(len(samples), 0, -1)]
