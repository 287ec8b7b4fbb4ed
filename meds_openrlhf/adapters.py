"""LoRA adapters, merged into the weight that they adapt: ``W + scaling * B @ A`` (Hu et al. 2021, Section 4.1).

Names are PEFT's: the weight ``X.weight`` of a model is ``X.base_layer.weight`` where it is adapted, beside
``X.lora_A.default.weight`` (r, in) and ``X.lora_B.default.weight`` (out, r); a whole model has PREFIX before each name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PREFIX = "base_model.model."
# A folder that PEFT saved has this file.
PEFT_CONFIG = "adapter_config.json"


def merged(weight: torch.Tensor, low: torch.Tensor, high: torch.Tensor, scaling: float) -> torch.Tensor:
    """Return ``weight + scaling * high @ low`` in float32: (out, in), from (out, in), (r, in) and (out, r).

    Takes one float32 matrix of memory; its arguments may have any floating dtype and are not changed.
    """
    result = high.float() @ low.float()
    return result.mul_(scaling).add_(weight)


def name_in_model(name: str) -> str | None:
    """Return a parameter's name in the model without adapters, or None for a parameter of an adapter."""
    if ".lora_" in name:
        return None
    return name.removeprefix(PREFIX).replace(".base_layer.", ".")
