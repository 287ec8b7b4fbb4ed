"""Sizes and unusual parts of models: read from a folder or the hub's cache, or honestly not known."""

import json
from pathlib import Path

import pytest
from transformers import (
    AriaTextConfig,
    DbrxConfig,
    DeepseekV3Config,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from meds_openrlhf.placement import model_shape
from meds_openrlhf.placement.model_shape import UnusualParts, find_shape, shape_of, unusual_parts


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


def test_a_mixture_of_experts_and_latent_attention_are_noticed() -> None:
    assert unusual_parts(MixtralConfig()) == UnusualParts(experts=True)
    assert unusual_parts(DeepseekV3Config()) == UnusualParts(latent_attention=True, experts=True)
    assert unusual_parts(DbrxConfig()) == unusual_parts(AriaTextConfig()) == UnusualParts(experts=True)
    assert [unusual_parts(config) for config in (LlamaConfig(), Qwen2Config(), GPT2Config())] == [UnusualParts()] * 3


TINY = {**SMALL, "num_hidden_layers": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
HYBRIDS = {
    "qwen3_next": {**DELTA, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8, "head_dim": 16},
    "qwen3_5_text": {**DELTA, "head_dim": 16},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8},
    "recurrent_gemma": {"lru_width": 64, "head_dim": 16},
}
DECODERS = {
    "qwen3": {"head_dim": 16},
    "llama": {},
    "gemma3_text": {"head_dim": 16, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "mixtral": {"num_local_experts": 2},
}


@pytest.mark.parametrize(("kind", "sizes"), [*HYBRIDS.items(), *DECODERS.items()])
def test_layers_that_carry_a_state_from_one_packed_response_into_the_next(kind: str, sizes: dict[str, object]) -> None:
    """The second of two responses in a row gets other logits than alone just if the model has such layers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, set_seed

    config = AutoConfig.for_model(kind, **{**TINY, **sizes})
    set_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    first, second = torch.randint(2, 128, (1, 9)), torch.randint(2, 128, (1, 7))
    positions = torch.cat([torch.arange(9), torch.arange(7)])[None]
    with torch.no_grad():
        packed = model(torch.cat([first, second], dim=1), position_ids=positions, use_cache=False).logits[:, 9:]
        alone = model(second, position_ids=positions[:, 9:], use_cache=False).logits
    change = float((packed - alone).abs().max() / alone.abs().max())
    assert (change > 1e-4) == bool(unusual_parts(config).layers) == (kind in HYBRIDS), change
