"""Records one logit per decoder layer at the answer token, during a forward pass that the trainer runs anyway.

For layer n the logit is <W_U[y*], h(n)>: the residual stream after layer n at the position that predicts y*, times the
unembedding row of y*. The last entry is taken after the final norm, the others before it (the paper's figures, Section
3.1). Hooks copy one row per layer, so the recorder never stores all hidden states or a full-vocabulary product. It does
not apply a model's soft cap on logits, which belongs to no layer.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from meds_openrlhf.adapters import merged
from meds_openrlhf.features.kind import FeatureFunction


@dataclass(frozen=True)
class DecoderParts:
    """The modules of a causal language model that the recorder hooks."""

    layers: list[torch.nn.Module]
    final_norm: torch.nn.Module
    unembedding: torch.nn.Module


def find_decoder_parts(model: torch.nn.Module) -> DecoderParts:
    """Find the modules that the recorder hooks, with one rule for all architectures.

    1. Unwrap the Hugging Face model from DeepSpeed's and DDP's engines and PEFT's adapters.
    2. The unembedding is the model's output embedding (such as ``lm_head`` or ``embed_out``).
    3. The decoder is the result of ``get_decoder()``: the language model, also inside a vision-language model.
    4. The layers are the decoder's module list whose length is the number of hidden layers in the configuration.
    5. The final norm is the only sibling of that list whose class name contains "norm".

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


class Recording:
    """The result of a forward pass: ``layer_logits`` (B, N) float32 and the ``seconds`` spent on recording.

    Rows without an answer position are NaN. On a GPU, ``seconds`` is host time, because the kernels run asynchronously.
    """

    def __init__(
        self,
        positions: torch.Tensor,
        targets: torch.Tensor,
        device: torch.device,
        function: FeatureFunction | None = None,
    ) -> None:
        self._function = function
        self.layer_logits: torch.Tensor | None = None
        self.seconds = 0.0
        present = positions >= 0
        # Selected on the host and copied once, so that no hook has to wait for the device.
        self._rows = present.nonzero(as_tuple=True)[0].to(device)  # (P,)
        self._positions = positions[present].to(device)  # (P,)
        self._targets = targets[present].to(device)  # (P,)
        self._batch = len(positions)
        self._unembedding: torch.Tensor | None = None  # (P, H)
        self._bias: torch.Tensor | float = 0.0  # (P, 1)
        self._held: torch.Tensor | None = None  # (P,): whether this rank has the unembedding row
        self._low: dict[str, torch.Tensor] = {}  # (r, H) per LoRA adapter of a partitioned unembedding
        self._logits: list[torch.Tensor] = []  # one (P,) per layer
        self._hidden: list[torch.Tensor] = []  # one (P, H) per layer, until the unembedding is available

    def keep_unembedding(self, module: Any, _inputs: object = None) -> None:
        """Store the targets' rows of the unembedding; under ZeRO-3 this runs as its forward pre-hook.

        With tensor parallelism a rank has only part of the rows; the others count as zero.
        """
        started = time.perf_counter()
        local = self._targets.to(module.weight.device) - _first_row(module)
        self._held = (local >= 0) & (local < module.weight.shape[0])
        local = local.clamp(0, module.weight.shape[0] - 1)
        with torch.no_grad():
            self._unembedding = _weight_rows(module, local).float() * self._held[:, None]
            if getattr(module, "bias", None) is not None:
                self._bias = (module.bias.index_select(0, local).float() * self._held)[:, None]
        self.seconds += time.perf_counter() - started

    def keep_low(self, module: Any, _inputs: object, name: str) -> None:
        """Forward pre-hook of LoRA's A of a partitioned unembedding: store it until B is gathered."""
        started = time.perf_counter()
        self._low[name] = module.weight.detach().clone()
        self.seconds += time.perf_counter() - started

    def add_adapter(self, module: Any, _inputs: object, name: str, scaling: float) -> None:
        """Forward pre-hook of LoRA's B of a partitioned unembedding: add the adapter to the rows."""
        started = time.perf_counter()
        assert self._unembedding is not None
        high = module.weight.detach().index_select(0, self._targets.to(module.weight.device))
        self._unembedding = merged(self._unembedding, self._low.pop(name), high, scaling)
        self.seconds += time.perf_counter() - started

    def keep_hidden(self, _module: object, _inputs: object, output: Any) -> None:
        """Forward hook of a layer: store the answer rows of its (..., H) hidden state, or their logits."""
        started = time.perf_counter()
        # Detach first, because gradient checkpointing counts the tensors saved for the backward pass in a layer.
        hidden = (output[0] if isinstance(output, tuple) else output).detach()
        rows = hidden.reshape(-1, hidden.shape[-1]).index_select(0, self._positions.to(hidden.device))
        if self._unembedding is None:
            self._hidden.append(rows)
        else:
            self._logits.append(self._multiply(rows))
        self.seconds += time.perf_counter() - started

    def _multiply(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute one float32 dot product per row: (P, H) to (P,)."""
        assert self._unembedding is not None
        return torch.linalg.vecdot(hidden.to(self._unembedding.device).float(), self._unembedding)

    def finish(self, layer_count: int, groups: Sequence[Any]) -> None:
        """Put the logits into their rows, and sum over the ranks of ``groups``."""
        started = time.perf_counter()
        if self._unembedding is not None:
            self._logits += [self._multiply(hidden) for hidden in self._hidden]
            self._hidden.clear()
        if self._function is not None:
            self._held = torch.ones(len(self._positions), dtype=torch.bool, device=self._positions.device)
            self._logits, self._hidden = self._values(self._function), []
            layer_count = self._function.values
        if self._held is None or len(self._logits) != layer_count:
            seen = len(self._logits) + len(self._hidden)
            raise RuntimeError(
                f"expected one pass over {layer_count} layers and the unembedding, saw {seen} hidden states. Is the "
                "model compiled, or does it skip its last layers?"
            )
        # (B, N + 1): the logits, and the number of ranks that have the row.
        total = torch.zeros(self._batch, layer_count + 1, device=self._held.device)
        logits = torch.stack(self._logits, dim=1) + self._bias  # (P, N)
        total[self._rows.to(total.device)] = torch.cat([logits, self._held[:, None].float()], dim=1)
        for group in groups:
            dist.all_reduce(total, group=group)
        # Divide by the number of ranks with the row; 0 / 0 gives NaN for rows on no rank.
        self.layer_logits = total[:, :-1] / total[:, -1:]
        self.seconds += time.perf_counter() - started

    def _values(self, function: FeatureFunction) -> list[torch.Tensor]:
        """Return the function's values of the hidden states, one (P,) each."""
        hidden = torch.stack([rows.to(self._positions.device).float() for rows in self._hidden], dim=1)  # (P, N, H)
        return [*torch.from_numpy(function(len(hidden), hidden)).to(hidden.device).T]


class LayerLogitRecorder:
    """Records layer logits of a causal language model during a forward pass.

    ``groups``: process groups whose ranks share a batch (ring attention, tensor parallelism); after a pass every rank
    has every row. ``function``: what to record in place of layer logits; the recording's ``layer_logits`` are then its
    values.
    """

    def __init__(
        self, model: torch.nn.Module, *, groups: Sequence[Any] = (), function: FeatureFunction | None = None
    ) -> None:
        self._parts = find_decoder_parts(model)
        adapted = self._parts.unembedding
        if any(flag for name in ("use_dora", "lora_bias") for flag in getattr(adapted, name, {}).values()):
            raise ValueError(
                "the unembedding's adapter is more than a product (DoRA, or a bias). Use plain LoRA there."
            )
        self._function = function
        self._groups = tuple(groups)

    @property
    def layer_count(self) -> int:
        """N, the number of decoder layers and of logits per row."""
        return len(self._parts.layers)

    @contextmanager
    def record(self, positions: torch.Tensor, targets: torch.Tensor) -> Iterator[Recording]:
        """Record the next forward pass of the model.

        ``positions`` (B,) int64 index the flattened tokens of the model's input (`features.layout`) at the token before
        ``y*``; -1 for a row without an answer, or with its answer on another rank. ``targets`` (B,) int64 are the token
        ids ``y*``. Both are on the host. After the block, the recording's ``layer_logits`` is (B, N) float32.
        """
        parts = self._parts
        recording = Recording(positions, targets, parts.unembedding.weight.device, self._function)
        handles = self._listen(recording)
        try:
            yield recording
        finally:
            for handle in handles:
                handle.remove()
        recording.finish(self.layer_count, self._groups)

    def _listen(self, recording: Recording) -> list[Any]:
        """Register the hooks. If weights are not partitioned, each row becomes a logit at once and is not stored.

        ZeRO-3 gathers a weight only for the pass of its module. The recorder then stores (P, H) per layer until the
        pass is over, which avoids gathering the largest matrix of the model a second time.
        """
        parts = self._parts
        modules = [*parts.layers[:-1], parts.final_norm]
        handles = [module.register_forward_hook(recording.keep_hidden) for module in modules]
        if self._function is None:
            if all(parameter.numel() > 0 for parameter in parts.unembedding.parameters()):
                recording.keep_unembedding(parts.unembedding)
            else:
                handles += _listen_to_unembedding(recording, parts.unembedding)
        return handles


def _first_row(module: Any) -> int:
    """Return the vocabulary index of the first row of ``module.weight``, nonzero if DeepSpeed's AutoTP has split it."""
    if getattr(module, "gather_output", False) and module.weight.shape[0] == module._partition_sizes[module.tp_index]:
        return int(sum(module._partition_sizes[: module.tp_index]))
    return 0


def _listen_to_unembedding(recording: Recording, module: Any) -> list[Any]:
    """Register the hooks of a partitioned unembedding; LoRA's wrapper runs W, A and B as modules of their own."""
    layer = getattr(module, "base_layer", module)
    handles = [layer.register_forward_pre_hook(recording.keep_unembedding)]
    for name in _adapters_of(module):
        add = functools.partial(recording.add_adapter, name=name, scaling=module.scaling[name])
        handles.append(module.lora_A[name].register_forward_pre_hook(functools.partial(recording.keep_low, name=name)))
        handles.append(module.lora_B[name].register_forward_pre_hook(add))
    return handles


def _weight_rows(module: Any, rows: torch.Tensor) -> torch.Tensor:
    """Return rows of the unembedding's weight, including LoRA's contribution if LoRA adapts the unembedding."""
    weight = module.weight.index_select(0, rows)
    for name in _adapters_of(module):
        high = module.lora_B[name].weight.index_select(0, rows)
        weight = merged(weight, module.lora_A[name].weight, high, module.scaling[name])
    return weight


def _adapters_of(module: Any) -> list[str]:
    """Return the names of the LoRA adapters that the module adds to its weight, which may have them already."""
    if getattr(module, "merged", False) or getattr(module, "disable_adapters", False):
        return []
    return [name for name in getattr(module, "active_adapters", ()) if name in getattr(module, "lora_A", {})]
