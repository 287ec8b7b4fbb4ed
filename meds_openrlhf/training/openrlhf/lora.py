"""A policy with LoRA adapters: merged weights for the engines and for the saved model, one matrix at a time.

vLLM and Hugging Face know only the base model's parameters, so each of them is sent and saved under its base name as
``W + scaling * B @ A``, computed in float32 and rounded once to W's dtype (`adapters.merged`). The policy's own weights
do not change.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from openrlhf.trainer.ray import ppo_actor
from peft.tuners.lora import LoraLayer

from meds_openrlhf.adapters import merged, name_in_model
from meds_openrlhf.training.openrlhf.access import replaced


class MergedWeights:
    """The parameters of ``peft_model`` under the base model's names; a gathered parameter has its adapters merged."""

    def __init__(self, peft_model: torch.nn.Module, adapted_alone: bool = False) -> None:
        self._model = peft_model
        self._adapted_alone = adapted_alone
        layers = [module for module in peft_model.modules() if isinstance(module, LoraLayer)]
        self._layer_of = {layer.get_base_layer().weight: layer for layer in layers}

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Iterate over the base model's parameters by name; their data is not merged yet."""
        for name, parameter in self._model.named_parameters():
            plain = name_in_model(name)
            if plain is not None and (parameter in self._layer_of or not self._adapted_alone):
                yield plain, parameter

    @contextmanager
    def gathered(self, parameters: Sequence[torch.nn.Parameter], enabled: bool = True) -> Iterator[None]:
        """Like DeepSpeed's ``GatheredParameters``, for one parameter; its ``data`` is the merged weight in the block.

        All ranks must enter it. With ``enabled`` false (ZeRO-1 and 2) nothing has to be gathered.
        """
        (parameter,) = parameters
        layer = self._layer_of.get(parameter)
        adapters = [] if layer is None else [*layer.lora_A.parameters(), *layer.lora_B.parameters()]
        with deepspeed.zero.GatheredParameters([parameter, *adapters], enabled=enabled):
            unmerged = parameter.data
            if layer is not None:
                parameter.data = _merged_weight(layer)
            try:
                yield
            finally:
                parameter.data = unmerged


def _merged_weight(layer: Any) -> torch.Tensor:
    """Return the weight of a linear layer with its active adapters, in the weight's dtype."""
    weight = base = layer.get_base_layer().weight.detach()
    for name in layer.active_adapters:
        low, high = layer.lora_A[name].weight.detach(), layer.lora_B[name].weight.detach()
        weight = merged(weight, low, high, layer.scaling[name])
    return weight.to(base.dtype)


def send_merged(trainer: ppo_actor.ActorPPOTrainer) -> None:
    """Run OpenRLHF's weight sync, by broadcast or CUDA IPC, with merged weights in place of the policy's parameters.

    For a vision-language model, OpenRLHF sends only trained parameters; here, the parameters with adapters.
    """
    weights = MergedWeights(trainer.actor.model.module, adapted_alone=getattr(trainer.actor, "is_vlm", False))
    view = copy.copy(trainer)
    view.actor = SimpleNamespace(model=SimpleNamespace(module=weights), is_vlm=False)
    zero = SimpleNamespace(GatheredParameters=weights.gathered)
    with replaced(ppo_actor, deepspeed=SimpleNamespace(zero=zero)):
        view.broadcast_to_vllm()


def save_merged(model: Any, tokenizer: Any, output_dir: str) -> None:
    """Save the merged model as a Hugging Face folder. Replaces the strategy's ``save_model``, on all ranks."""
    peft_model = model.model.module
    weights, writes = MergedWeights(peft_model), dist.get_rank() == 0
    state: dict[str, torch.Tensor] = {}
    for name, parameter in weights.named_parameters():
        with weights.gathered([parameter]):
            if writes:
                state[name] = parameter.detach().to("cpu", copy=True)
    if writes:
        saved = peft_model.state_dict()
        state |= {str(name_in_model(name)): buffer for name, buffer in peft_model.named_buffers() if name in saved}
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        peft_model.get_base_model().save_pretrained(output_dir, state_dict=state)
        tokenizer.save_pretrained(output_dir)
    dist.barrier()
