"""Checks of LoRA's settings before anything expensive starts: what cannot be merged exactly for the engines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from meds_openrlhf.config import ConfigError, RunConfig, load_config
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.training.preparation.checks import without_weights

ALL_LINEAR = "all-linear"


def require_settings(args: SimpleNamespace) -> None:
    """Raise ConfigError for LoRA settings that are out of range or that do not go with each other."""
    lora = args.ds.lora
    if lora.rank < 0:
        raise ConfigError("ds.lora.rank", lora.rank, "is negative; 0 trains all weights, without LoRA")
    if not lora.rank:
        return
    if lora.alpha < 1:
        raise ConfigError("ds.lora.alpha", lora.alpha, "scales the adapters, by alpha / rank, and has to be at least 1")
    if not 0 <= lora.dropout < 1:
        raise ConfigError("ds.lora.dropout", lora.dropout, "is no share from 0 up to, and without, 1")
    for field, value, off, reason in (
        ("ds.load_in_4bit", args.ds.load_in_4bit, False, "adapters are not merged into quantised weights"),
        ("ds.tensor_parallel_size", args.ds.tensor_parallel_size, 1, "weights split over ranks are not merged"),
        ("train.enable_ema", args.train.enable_ema, False, "the averaged model has no adapters"),
    ):
        if value != off:
            raise ConfigError(field, value, f"does not go with ds.lora.rank {lora.rank}: {reason}; leave it out")


def require_same_adapters(config: RunConfig, paths: RunPaths) -> None:
    """Raise ConfigError if a resumed run has other adapters than the run in its folder."""
    saved = load_config(paths.config).openrlhf
    for key, default in (("ds.lora.rank", 0), ("ds.lora.alpha", 16), ("ds.lora.target_modules", ALL_LINEAR)):
        now, before = config.openrlhf.get(key, default), saved.get(key, default)
        if before != now:
            hint = f"does not fit the checkpoint, which was saved with {before!r}; resume with that"
            raise ConfigError(key, now, hint)


def require_targets(args: SimpleNamespace, policy: Any) -> None:
    """Raise ConfigError for target modules that the policy lacks, or whose adapters cannot be merged exactly."""
    targets = args.ds.lora.target_modules
    if not args.ds.lora.rank:
        return
    from transformers.pytorch_utils import Conv1D

    model = without_weights(policy)
    modules = dict(model.named_modules())
    linear = {name.rpartition(".")[2]: None for name, module in modules.items() if _is_linear(module)}  # in order
    known = f"this {model.config.model_type} model has {', '.join(linear)}; leave it out for all but the unembedding"
    if not targets:
        raise _refusal(targets, f"names none; {known}")
    if targets == ALL_LINEAR:
        if any(isinstance(module, Conv1D) for module in modules.values()):
            raise _refusal(targets, f"has Conv1D layers in this {model.config.model_type} model, which are not merged")
        return
    for target in targets:
        found = [module for name, module in modules.items() if f".{name}".endswith(f".{target}")]
        if not found:
            raise _refusal(target, f"is no module; {known}")
        if not all(_is_linear(module) for module in found):
            raise _refusal(target, f"is no linear layer, and only those can be merged; {known}")
        if any(module.weight is model.get_input_embeddings().weight for module in found):
            raise _refusal(target, "has the embeddings' weight, which engines cannot have once with and once without")


def _refusal(value: object, hint: str) -> ConfigError:
    return ConfigError("ds.lora.target_modules", value, hint)


def _is_linear(module: Any) -> bool:
    import torch

    return isinstance(module, torch.nn.Linear)
