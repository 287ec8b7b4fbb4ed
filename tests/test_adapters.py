"""LoRA adapters in their weights, beside PEFT's own merge."""

import pytest
import torch
from peft.tuners.lora import LoraLayer

from meds_openrlhf.adapters import merged, plain_name
from tests.features.models import make_model, with_adapters

TARGETS = ("q_proj", "v_proj", "gate_proj", "down_proj", "lm_head")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_merged_weight_is_pefts_with_one_rounding(dtype: torch.dtype) -> None:
    model = with_adapters(make_model("qwen2", dtype), TARGETS)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    found = {}
    for name, layer in layers.items():
        low, high = layer.lora_A["default"].weight.detach(), layer.lora_B["default"].weight.detach()
        before = layer.weight.detach().clone()
        found[plain_name(f"{name}.base_layer.weight")] = merged(before, low, high, layer.scaling["default"])
        assert torch.equal(layer.weight, before)
    expected = model.float().merge_and_unload().state_dict()
    assert len(found) == 4 * 5 + 1
    assert plain_name("base_model.model.model.norm.weight") == plain_name("model.norm.weight") == "model.norm.weight"
    assert plain_name("base_model.model.lm_head.lora_A.default.weight") is None
    for name, weight in found.items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, expected[name])
        assert not torch.equal(weight, make_model("qwen2", dtype).state_dict()[name].float())
