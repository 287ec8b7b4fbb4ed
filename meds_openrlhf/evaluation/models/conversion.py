"""Convert a DeepSpeed checkpoint to a model folder that vLLM can load.

DeepSpeed's files are pickles. Only its own converter opens them, as in a resumed run, and only for the user's own run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from meds_openrlhf.adapters import merged, plain_name
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.evaluation.models.naming import Model

# The weights of ZeRO-1 and 2; under ZeRO-3 each rank has a file of another name.
_WHOLE_STATES = "mp_rank_00_model_states.pt"


def converted(model: Model, fingerprint: str, folder: Path) -> Path:
    """The checkpoint's model in Hugging Face format below ``folder``, converted once per ``fingerprint``.

    Raises ConfigError if the checkpoint does not hold a complete model of the base model's shape.
    """
    assert model.shards is not None
    target = folder / f"model-{fingerprint[:12]}"
    if target.is_dir():
        return target
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        _save(model, _weights(model.shards), temporary)
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


def _save(source: Model, weights: dict[str, Any], folder: Path) -> None:
    """Save in bfloat16, as OpenRLHF saves a trained policy, with the configuration and tokenizer of the base model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    base = str(source.base)
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(base, trust_remote_code=True)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, trust_remote_code=True)
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
    AutoTokenizer.from_pretrained(base, trust_remote_code=True).save_pretrained(folder)


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
