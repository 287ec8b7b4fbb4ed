"""The recorder against the long way: output_hidden_states and the full unembedding matrix."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from meds_openrlhf.features.recorder import LayerLogitRecorder

SIZES = dict(
    vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=5, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64,
)  # fmt: skip
CONFIGS = {
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=False),
    "qwen2-tied": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=8),
    "llama": LlamaConfig(**SIZES),
    "mistral": MistralConfig(**SIZES),
}


def make_model(config: PretrainedConfig, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).to(dtype).eval()


def padded_batch(side: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids and mask (4, 12), positions and targets (4,); the third row has no answer."""
    torch.manual_seed(1)
    ids = torch.randint(0, 97, (4, 12))
    mask = torch.ones_like(ids)
    for row, padding in enumerate((0, 3, 5, 1)):
        mask[row, :padding] = 0
    if side == "right":
        mask = mask.flip(1)
    positions = torch.tensor([9, 6, -1, 3]) if side == "left" else torch.tensor([9, 4, -1, 3])
    return ids, mask, positions, ids[torch.arange(4), positions + 1]


def record(model: torch.nn.Module, side: str) -> torch.Tensor:
    ids, mask, positions, targets = padded_batch(side)
    recorder = LayerLogitRecorder(model)
    with torch.no_grad(), recorder.record(positions, targets) as recording:
        model(ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0))
    assert recording.layer_logits is not None
    return recording.layer_logits


def the_long_way(model: torch.nn.Module, side: str) -> torch.Tensor:
    ids, mask, positions, targets = padded_batch(side)
    with torch.no_grad():
        output = model(
            ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0), output_hidden_states=True
        )
        logits = torch.stack([model.lm_head(hidden).float() for hidden in output.hidden_states[1:]])  # (N, B, T, V)
    return logits[:, torch.arange(4), positions, targets].T  # (B, N)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", CONFIGS)
def test_equals_the_long_way_in_float32(name: str, side: str) -> None:
    model = make_model(CONFIGS[name])
    recorded, expected = record(model, side), the_long_way(model, side)
    rows = [0, 1, 3]
    assert recorded.shape == (4, 5)
    assert recorded.dtype == torch.float32
    torch.testing.assert_close(recorded[rows], expected[rows], atol=1e-5, rtol=1e-5)
    assert recorded[2].isnan().all()


def test_rounds_to_the_long_way_in_bfloat16() -> None:
    model = make_model(CONFIGS["qwen2"], torch.bfloat16)
    recorded, expected = record(model, "left"), the_long_way(model, "left")
    torch.testing.assert_close(recorded[[0, 1, 3]], expected[[0, 1, 3]], atol=2**-8, rtol=2**-7)


def test_leaves_no_hook_and_changes_no_output() -> None:
    model = make_model(CONFIGS["qwen2"])
    ids, mask, positions, targets = padded_batch("right")
    with torch.no_grad():
        before = model(ids, attention_mask=mask).logits
        with LayerLogitRecorder(model).record(positions, targets):
            during = model(ids, attention_mask=mask).logits
    assert torch.equal(before, during)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_failing_pass_removes_the_hooks_and_keeps_its_own_error() -> None:
    model = make_model(CONFIGS["qwen2"])
    none = torch.tensor([-1])
    with pytest.raises(KeyError, match="mine"), LayerLogitRecorder(model).record(none, none):
        raise KeyError("mine")
    assert not any(module._forward_hooks for module in model.modules())


def test_no_answer_in_the_whole_batch_gives_nan_rows() -> None:
    model = make_model(CONFIGS["llama"])
    none = torch.full((2,), -1)
    with torch.no_grad(), LayerLogitRecorder(model).record(none, none) as recording:
        model(torch.zeros(2, 4, dtype=torch.long))
    assert recording.layer_logits is not None
    assert recording.layer_logits.shape == (2, 5)
    assert recording.layer_logits.isnan().all()


def test_the_model_class_is_named_where_the_rule_finds_no_decoder() -> None:
    config = GPTNeoXConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    with pytest.raises(ValueError, match="GPTNeoXForCausalLM"):
        LayerLogitRecorder(make_model(config))
