"""What is needed of a model before engines load it: facts about it, and a folder with its weights.

DeepSpeed's checkpoints are pickles. Only its own converter opens them, as in a resumed run, and only for the user's own
run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meds_openrlhf.adapters import merged, plain_name
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.evaluation.models.naming import Model, fingerprint_of
from meds_openrlhf.evaluation.problems import Problem
from meds_openrlhf.placement.model_shape import shape_of
from meds_openrlhf.runtime.hub import loading

# The weights of ZeRO-1 and 2; under ZeRO-3 each rank has a file of another name.
_WHOLE_STATES = "mp_rank_00_model_states.pt"


@dataclass(frozen=True)
class KnownModel:
    """A model with its configuration and tokenizer. ``context`` is in tokens, None if the configuration has none."""

    model: Model
    fingerprint: str
    revision: str | None
    context: int | None
    tokenizer: Any
    trusted: bool  # to run code of its own

    def tokens(self, benchmark: str, problems: Sequence[Problem]) -> dict[str, tuple[int, ...]]:
        """Each problem's prompt as token ids, without added special tokens: the template contains them.

        Raises ConfigError if a prompt leaves no room for a response.
        """
        found = {
            problem.id: tuple(self.tokenizer.encode(problem.prompt, add_special_tokens=False)) for problem in problems
        }
        for problem, tokens in found.items():
            if self.context is not None and len(tokens) >= self.context:
                hint = f"has {len(tokens)} tokens, but {self.model.label} reads {self.context}, response included."
                raise ConfigError(benchmark, problem, hint)
        return found

    def longest(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> int:
        """The number of tokens for the longest prompt with its response, at most the context length."""
        wanted = max(map(len, prompts)) + max_tokens
        return wanted if self.context is None else min(wanted, self.context)


def know(model: Model, tensor_parallel: int, trusted: bool) -> KnownModel:
    """Read a model's configuration and tokenizer, from a folder or the hub, but not its weights.

    Raises ConfigError if they cannot be read, if the model has code of its own and is not ``trusted``, or if it cannot
    be split evenly over ``tensor_parallel`` GPUs.
    """
    from transformers import AutoConfig, AutoTokenizer

    name = str(model.folder or model.base or model.hub)
    with loading(name, "MODEL", trusted) as options:
        config = AutoConfig.from_pretrained(name, **options)
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
    shape = shape_of(config)
    if shape is not None and not shape.splits_over(tensor_parallel):
        hint = f"is not a size over which {name} can be split. Choose another number of GPUs."
        raise ConfigError("--tensor-parallel", tensor_parallel, hint)
    on_disk = model.folder or model.shards
    revision = None if on_disk else getattr(config, "_commit_hash", None)
    return KnownModel(
        model=model,
        fingerprint=fingerprint_of(on_disk) if on_disk else f"{name}@{revision}",
        revision=revision,
        context=getattr(config.get_text_config(), "max_position_embeddings", None),
        tokenizer=tokenizer,
        trusted=trusted,
    )


def converted(model: Model, fingerprint: str, folder: Path, trusted: bool = False) -> Path:
    """The checkpoint's model in Hugging Face format below ``folder``, converted once per ``fingerprint``.

    Raises ConfigError if the checkpoint does not hold a complete model of the base model's shape.
    """
    assert model.shards is not None
    target = folder / f"model-{fingerprint[:12]}"
    if target.is_dir():
        return target
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        _save(model, _weights(model.shards), temporary, trusted)
        os.rename(temporary, target)  # atomic: the folder is never incomplete
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _weights(shards: Path) -> dict[str, Any]:
    """All parameters by name, float32; each is assembled from the ranks' shards on first access."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed would probe for an accelerator at import
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    try:
        with _silence():
            return dict(get_fp32_state_dict_from_zero_checkpoint(str(shards.parent), shards.name, lazy_mode=True))
    except (ValueError, KeyError, OSError, RuntimeError) as error:
        hint = f"cannot be assembled by DeepSpeed ({error}). Runs with --ckpt.save_hf need no conversion."
        raise ConfigError("MODEL", str(shards), hint) from error


def _save(source: Model, weights: dict[str, Any], folder: Path, trusted: bool) -> None:
    """Save in bfloat16, as OpenRLHF saves a trained policy, with the configuration and tokenizer of the base model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    base = str(source.base)
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(base, trust_remote_code=trusted)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, trust_remote_code=trusted)
    wanted, tied = set(dict(model.named_parameters())), set(dict(model.named_parameters(remove_duplicate=False)))
    names = {plain: name for name in weights if (plain := plain_name(name)) is not None}
    missing, strange = sorted(wanted - set(names)), sorted(set(names) - tied - set(dict(model.named_buffers())))
    if missing or strange:
        what = f"lacks {missing[0]}" if missing else f"contains {strange[0]}, which {base} does not have"
        raise ConfigError("MODEL", str(source.shards), f"is not a checkpoint of {base}: it {what}.")
    state = {plain: _weight(source, weights, name) for plain, name in names.items()}
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    with _silence():
        model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base, trust_remote_code=trusted).save_pretrained(folder)


def _weight(source: Model, weights: dict[str, Any], name: str) -> Any:
    """Return the weight ``name`` in bfloat16, with the adapter of its layer if it has one."""
    import torch

    weight: torch.Tensor = weights[name].contiguous().to(torch.bfloat16)
    if source.lora_alpha is None or not name.endswith(".base_layer.weight"):
        return weight
    low, high = (weights[name.replace(".base_layer.", f".lora_{matrix}.default.")].contiguous() for matrix in "AB")
    assert source.shards is not None
    if (source.shards / _WHOLE_STATES).exists():
        low, high = low.to(torch.bfloat16), high.to(torch.bfloat16)  # as the policy has them; under ZeRO-3, float32
    return merged(weight, low, high, source.lora_alpha / len(low)).to(torch.bfloat16)


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress the libraries' messages and progress bars."""
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield
