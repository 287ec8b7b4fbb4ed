"""The training set: ids and lengths of prompts, and the steps that it makes."""

import pickle
from types import SimpleNamespace

import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from meds_openrlhf.config import ConfigError
from meds_openrlhf.training.preparation import prompts
from meds_openrlhf.training.prompt_ids import PromptIds


def examined(rows: list[dict], column: str | None = None, **options: object) -> tuple[int, PromptIds | None]:
    """With a token for each character, and four of them for a prompt unless ``options`` say otherwise."""
    flags = {"apply_chat_template": False, "input_template": None, "input_key": "prompt", "max_len": 20, **options}
    args = SimpleNamespace(data=SimpleNamespace(**flags, label_key=None), rollout=SimpleNamespace(max_new_tokens=16))

    def tokenizer(text: str, add_special_tokens: bool) -> dict[str, list[str]]:
        return {"input_ids": list(text)}

    tokenizer.apply_chat_template = lambda chat, **_: f"<{chat[0]['content']}>"  # type: ignore[attr-defined]
    return prompts.examine_prompts(Dataset.from_list(rows), args, tokenizer, column)


def prompt_ids(rows: list[dict], template: str | None = None) -> PromptIds:
    too_long, ids = examined(rows, "id", input_template=template, max_len=1000)
    assert too_long == 0
    assert ids is not None
    return ids


def test_prompt_ids_are_keyed_by_the_text_that_the_engines_get() -> None:
    rows = [{"id": 7, "prompt": "1+1"}, {"id": 8, "prompt": "1+2"}, {"id": 7, "prompt": "1+1"}]
    ids = prompt_ids(rows, "Q: {}")
    assert (ids["Q: 1+1"], ids["Q: 1+2"]) == ("7", "8")
    assert len(ids.hashes) == len(ids.ids) == 2
    for stranger in ("1+1", "Q: 1+3"):
        with pytest.raises(KeyError, match=r"1\+"):
            ids[stranger]


@settings(max_examples=30)
@given(st.lists(st.text(max_size=5), min_size=1, max_size=300, unique=True))
def test_every_prompt_finds_its_own_id(texts: list[str]) -> None:
    ids = prompt_ids([{"id": f"id {number}", "prompt": text} for number, text in enumerate(texts)])
    assert [ids[text] for text in texts] == [f"id {number}" for number in range(len(texts))]


def test_more_rows_than_are_read_at_once_and_few_bytes_a_prompt() -> None:
    rows = [{"id": number % 2500, "prompt": f"prompt {number % 2500}"} for number in range(3000)]
    ids = prompt_ids(rows)
    assert ids["prompt 2499"] == "2499"
    assert len(ids.ids) == 2500
    assert len(pickle.dumps(ids)) < 20 * 2500


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("7", "a"), ("8", "a")], "gives one prompt two ids, 7 and 8"),
        ([("7", "a"), ("7", "b")], "gives two prompts the id 7"),
        ([("7", "a"), (None, "b")], "is empty for the prompt 'b'"),
    ],
)
def test_ids_that_would_mix_memories_are_refused(rows: list[tuple], message: str) -> None:
    with pytest.raises(ConfigError, match=f"meds.memory.prompt_id_key: 'id' {message}"):
        prompt_ids([{"id": key, "prompt": text} for key, text in rows])


def count_too_long(texts: list[str], **options: object) -> int:
    too_long, ids = examined([{"prompt": text} for text in texts], **options)
    assert ids is None
    return too_long


def test_too_long_prompts_are_counted_by_tokens_with_their_template() -> None:
    texts = ["1+1", "12+3", "12+34", "éééé", "ééééé"]  # é has two bytes
    assert count_too_long(texts) == 2
    assert count_too_long(texts, input_template="{}?") == 4
    assert count_too_long(["1", "12", "123"], apply_chat_template=True) == 1


def test_a_set_of_nothing_but_too_long_prompts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data.max_len: 20 leaves 4 tokens to a prompt, and every prompt has more"):
        count_too_long(["12+34"])
