"""The training set: lengths of its prompts."""

from types import SimpleNamespace

import pytest
from datasets import Dataset

from meds_openrlhf.config import ConfigError
from meds_openrlhf.training.start import prepare


def count_too_long(texts: list[str], **options: object) -> int:
    """With a token for each character, and four of them for a prompt unless ``options`` say otherwise."""
    flags = {"apply_chat_template": False, "input_template": None, "input_key": "prompt", "max_len": 20, **options}
    args = SimpleNamespace(data=SimpleNamespace(**flags, label_key=None), rollout=SimpleNamespace(max_new_tokens=16))

    def tokenizer(text: str, add_special_tokens: bool) -> dict[str, list[str]]:
        return {"input_ids": list(text)}

    tokenizer.apply_chat_template = lambda chat, **_: f"<{chat[0]['content']}>"  # type: ignore[attr-defined]
    return prepare.count_too_long(Dataset.from_list([{"prompt": text} for text in texts]), args, tokenizer)


def test_too_long_prompts_are_counted_by_tokens_with_their_template() -> None:
    texts = ["1+1", "12+3", "12+34", "éééé", "ééééé"]  # é has two bytes
    assert count_too_long(texts) == 2
    assert count_too_long(texts, input_template="{}?") == 4
    assert count_too_long(["1", "12", "123"], apply_chat_template=True) == 1


def test_a_set_of_nothing_but_too_long_prompts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data.max_len=20: leaves 4 tokens for a prompt, but all are longer"):
        count_too_long(["12+34"])
