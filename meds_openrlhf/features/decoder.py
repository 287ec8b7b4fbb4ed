"""Finds the modules of a causal language model that the recorder hooks, with one rule for all architectures.

1. Unwrap the Hugging Face model from DeepSpeed's and DDP's engines and PEFT's adapters.
2. The unembedding is the model's output embedding (such as ``lm_head`` or ``embed_out``).
3. The decoder is the result of ``get_decoder()``: the language model, also inside a vision-language model.
4. The layers are the decoder's module list whose length is the number of hidden layers in the configuration.
5. The final norm is the only sibling of that list whose class name contains "norm".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class DecoderParts:
    """The modules of a causal language model that the recorder hooks."""

    layers: list[torch.nn.Module]
    final_norm: torch.nn.Module
    unembedding: torch.nn.Module


def find_decoder_parts(model: torch.nn.Module) -> DecoderParts:
    """Return decoder layers, final norm and unembedding of ``model`` by the module's rule.

    Raises ValueError, naming the model's class, if the rule does not apply, and for a compiled model, because compiled
    code does not run hooks that are registered later.
    """
    inner = _unwrap(model)
    name = type(inner).__name__
    unembedding = inner.get_output_embeddings() if hasattr(inner, "get_output_embeddings") else None
    if unembedding is None:
        raise _unknown(name, "it has no output embedding")
    decoder = inner.get_decoder()
    if not hasattr(decoder, "config"):
        raise _unknown(name, f"what it calls its decoder is a {type(decoder).__name__}")
    count = decoder.config.get_text_config().num_hidden_layers
    for parent in decoder.modules():
        norms = [child for child in parent.children() if "norm" in type(child).__name__.lower()]
        for layers in parent.children():
            if isinstance(layers, torch.nn.ModuleList) and len(layers) == count and len(norms) == 1:
                return DecoderParts(layers=list(layers), final_norm=norms[0], unembedding=unembedding)
    raise _unknown(name, f"no list of {count} layers with one norm beside it was found")


def _unwrap(model: torch.nn.Module) -> Any:
    inner: Any = model
    while True:
        if hasattr(inner, "_orig_mod") or getattr(inner, "_compiled_call_impl", None) is not None:
            raise ValueError(
                "the policy is compiled (torch.compile, DeepCompile) and compiled code runs no hooks, so its "
                "layer logits cannot be recorded. Train it uncompiled, or set meds.enabled: false."
            )
        if hasattr(inner, "get_base_model"):
            inner = inner.get_base_model()
        elif isinstance(getattr(inner, "module", None), torch.nn.Module):
            inner = inner.module
        else:
            return inner


def _unknown(name: str, reason: str) -> ValueError:
    return ValueError(
        f"the decoder layers of {name} cannot be found ({reason}), so its layer logits cannot be recorded. Use another "
        "model, or set meds.enabled: false."
    )
