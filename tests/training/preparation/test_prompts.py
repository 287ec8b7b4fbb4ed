"""The training set: ids of prompts, and the steps that it makes."""

from types import SimpleNamespace

import pytest
from datasets import Dataset

from meds_openrlhf.config import ConfigError
from meds_openrlhf.training.preparation import prompts


def prompt_ids(rows: list[dict], template: str | None = None) -> dict[str, str]:
    data = SimpleNamespace(apply_chat_template=False, input_template=template, input_key="prompt", label_key=None)
    tokenizer = SimpleNamespace(apply_chat_template=None)
    return prompts.prompt_ids(Dataset.from_list(rows), SimpleNamespace(data=data), tokenizer, "id")


def test_prompt_ids_are_keyed_by_the_text_that_the_engines_get() -> None:
    rows = [{"id": 7, "prompt": "1+1"}, {"id": 8, "prompt": "1+2"}, {"id": 7, "prompt": "1+1"}]
    assert prompt_ids(rows, "Q: {}") == {"Q: 1+1": "7", "Q: 1+2": "8"}


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


def arguments(train_batch: int) -> SimpleNamespace:
    return SimpleNamespace(
        data=SimpleNamespace(max_samples=100),
        rollout=SimpleNamespace(batch_size=8, n_samples_per_prompt=4),
        train=SimpleNamespace(batch_size=train_batch),
    )


@pytest.mark.parametrize(("rows", "steps"), [(16, 2), (19, 2), (20, 3), (24, 3), (500, 13), (4, 1)])
def test_an_epochs_last_step_holds_a_mini_batch_or_is_none(rows: int, steps: int) -> None:
    assert prompts.steps_of_an_epoch(arguments(16), rows) == steps


def test_too_few_prompts_for_a_mini_batch_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"train.batch_size: 16 is more than the 3 prompts with 4 responses each"):
        prompts.steps_of_an_epoch(arguments(16), 3)
