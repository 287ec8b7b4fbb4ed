"""Keeping one logit per decoder layer at the answer token, from the forward pass that runs anyway.

For layer n the logit is <W_U[y*], h(n)>: the residual stream after layer n at the position that predicts y*, times the
unembedding row of y*. The last entry is taken after the final norm; the others are raw (the paper's figures, Section
3.1). Hooks take one row per layer as it passes, so neither all hidden states nor a full-vocabulary product ever exist.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class DecoderParts:
    """The modules of a causal language model that the recorder listens to."""

    layers: list[torch.nn.Module]
    final_norm: torch.nn.Module
    unembedding: torch.nn.Module


def find_decoder_parts(model: torch.nn.Module) -> DecoderParts:
    """Decoder layers, final norm and unembedding of a Hugging Face causal language model of the Llama layout.

    The rule: unwrap what DeepSpeed puts around the model (``.module``), then take ``model.layers``, ``model.norm`` and
    ``lm_head``, as Llama, Qwen2, Qwen3 and Mistral name them. Raises ValueError with the model's class otherwise.
    """
    inner: Any = model
    while hasattr(inner, "module"):
        inner = inner.module
    decoder = getattr(inner, "model", None)
    layers, norm, head = (
        getattr(decoder, "layers", None),
        getattr(decoder, "norm", None),
        getattr(inner, "lm_head", None),
    )
    if layers is None or norm is None or head is None:
        raise ValueError(
            f"actor.model_name_or_path: {type(inner).__name__} has no model.layers, model.norm and lm_head, so its "
            "layer logits cannot be recorded; use a Llama, Qwen2, Qwen3 or Mistral model, or set meds.enabled: false"
        )
    return DecoderParts(layers=list(layers), final_norm=norm, unembedding=head)


class Recording:
    """What one forward pass left: ``layer_logits`` (B, N) float32 and the ``seconds`` that keeping them took.

    Rows without an answer position are NaN. On a GPU, ``seconds`` is the host's time; the kernels run on.
    """

    def __init__(self, positions: torch.Tensor, targets: torch.Tensor) -> None:
        self.layer_logits: torch.Tensor | None = None
        self.seconds = 0.0
        self._present = (positions >= 0).nonzero(as_tuple=True)[0]  # (P,)
        self._positions = positions[self._present]  # (P,)
        self._targets = targets[self._present]  # (P,)
        self._batch = positions.shape[0]
        self._hidden: list[torch.Tensor] = []  # one (P, H) per layer
        self._rows: torch.Tensor | None = None  # (P, H)

    def keep_hidden(self, _module: object, _inputs: object, output: Any) -> None:
        """Forward hook: keep the answer positions' rows of a (B, T, H) hidden state."""
        started = time.perf_counter()
        hidden = output[0] if isinstance(output, tuple) else output
        rows, positions = self._present.to(hidden.device), self._positions.to(hidden.device)
        self._hidden.append(hidden[rows, positions].detach())
        self.seconds += time.perf_counter() - started

    def keep_unembedding(self, module: Any, _inputs: object) -> None:
        """Forward pre-hook: keep the unembedding rows of the targets.

        At this moment the weight is whole even under ZeRO-3, which gathers it for this module's own pass, so nothing
        needs to be gathered twice.
        """
        started = time.perf_counter()
        self._rows = module.weight[self._targets.to(module.weight.device)].detach()
        self.seconds += time.perf_counter() - started

    def finish(self, layer_count: int) -> None:
        """Multiply what was kept: one float32 dot product per row and layer."""
        started = time.perf_counter()
        if self._rows is None or len(self._hidden) != layer_count:
            raise RuntimeError(f"expected one pass over {layer_count} layers, saw {len(self._hidden)} hidden states")
        rows = self._rows.float()
        logits = torch.stack([(hidden.to(rows.device).float() * rows).sum(-1) for hidden in self._hidden], dim=1)
        self.layer_logits = torch.full((self._batch, layer_count), float("nan"), device=rows.device)
        self.layer_logits[self._present.to(rows.device)] = logits
        self.seconds += time.perf_counter() - started


class LayerLogitRecorder:
    """Records layer logits of a causal language model while it does a forward pass for someone else."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._parts = find_decoder_parts(model)

    @property
    def layer_count(self) -> int:
        """N, the number of decoder layers and so of logits per row."""
        return len(self._parts.layers)

    @contextmanager
    def record(self, positions: torch.Tensor, targets: torch.Tensor) -> Iterator[Recording]:
        """Record the next forward pass of the model.

        ``positions`` (B,) int64 index each row's input of (B, T) at the token before y*, -1 for none; ``targets`` (B,)
        int64 are the token ids y*. After the block, the yielded recording's ``layer_logits`` is (B, N) float32.
        """
        recording = Recording(positions, targets)
        heard = [*self._parts.layers[:-1], self._parts.final_norm]
        handles = [module.register_forward_hook(recording.keep_hidden) for module in heard]
        handles.append(self._parts.unembedding.register_forward_pre_hook(recording.keep_unembedding))
        try:
            yield recording
        finally:
            for handle in handles:
                handle.remove()
        recording.finish(self.layer_count)
