"""A model's configuration from its file alone, as transformers reads it."""

import json
from pathlib import Path

import pytest
from transformers import LlamaConfig, MistralConfig, PhiConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from meds_openrlhf.placement.model_config import PlainConfig, load_model_config
from meds_openrlhf.placement.model_shape import shape_of

SIZES = dict(
    vocab_size=100, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, tie_word_embeddings=False, architectures=["AForCausalLM"],
)  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [LlamaConfig(**SIZES, head_dim=8), MistralConfig(**SIZES), Qwen2Config(**SIZES), Qwen3Config(**SIZES, head_dim=32)],
    ids=lambda config: config.model_type,
)
def test_plain_decoders_are_read_as_transformers_reads_them(config: PretrainedConfig, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    plain = load_model_config(str(tmp_path))
    assert type(plain) is PlainConfig
    assert shape_of(plain) == shape_of(config)
    for name in (*SIZES, "model_type", "architectures"):
        assert getattr(plain.get_text_config(), name) == getattr(config, name)


def test_what_a_file_leaves_open_is_left_to_transformers(tmp_path: Path) -> None:
    Qwen3Config(**SIZES, head_dim=32).save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    del content["head_dim"]
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert load_model_config(str(tmp_path)).head_dim == 128
    PhiConfig(**SIZES).save_pretrained(tmp_path)
    assert type(load_model_config(str(tmp_path))) is PhiConfig


def test_a_folder_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"^there is no config.json in it$"):
        load_model_config(str(tmp_path))
