"""Sizes of models: read from a folder or the hub's cache, or honestly not known."""

import json
from pathlib import Path

import pytest
from transformers import LlamaConfig, MixtralConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from meds_openrlhf.placement import model_shape
from meds_openrlhf.placement.model_shape import find_shape, shape_of


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_shape, "hub_answers", lambda: False)


SMALL = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=128)


QWEN3 = Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=24, tie_word_embeddings=True)


@pytest.mark.parametrize("config", [LlamaConfig(**SMALL), Qwen2Config(**SMALL), QWEN3])
def test_parameters_are_those_of_the_model_itself(config: PretrainedConfig) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shape = shape_of(config)
    assert shape is not None
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_the_sizes_in_a_folder_and_why_others_are_not_known(tmp_path: Path) -> None:
    unknown = find_shape("some/model")
    assert unknown.shape is None
    assert unknown.unknown == (
        "configuration not readable: not in the hub's cache, and the hub does not answer. Try `hf download some/model "
        "config.json`"
    )
    Qwen2Config(**SMALL).save_pretrained(tmp_path)
    found = find_shape(str(tmp_path))
    assert found.shape is not None
    assert (found.shape.layers, found.shape.hidden, found.unknown) == (2, 64, "")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-type"}))
    broken = find_shape(str(tmp_path))
    assert broken.shape is None
    assert "no-such-type" in broken.unknown
    assert shape_of(MixtralConfig()) is None  # experts are not guessed
