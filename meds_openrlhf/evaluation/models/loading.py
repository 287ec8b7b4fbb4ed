"""Facts about a model that are needed before engines load it: fingerprint, context length, prompt tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.evaluation.models.naming import Model, fingerprint_of
from meds_openrlhf.evaluation.problems import Problem
from meds_openrlhf.placement.model_shape import shape_of
from meds_openrlhf.runtime.hub import can_be_reached


@dataclass(frozen=True)
class KnownModel:
    """A model with its configuration and tokenizer. ``context`` is in tokens, None if the configuration has none."""

    model: Model
    fingerprint: str
    revision: str | None
    context: int | None
    tokenizer: Any

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


def know(model: Model, tensor_parallel: int) -> KnownModel:
    """Read a model's configuration and tokenizer, from a folder or the hub, but not its weights.

    Raises ConfigError if they cannot be read, or if the model cannot be split evenly over ``tensor_parallel`` GPUs.
    """
    from transformers import AutoConfig, AutoTokenizer

    name = str(model.folder or model.base or model.hub)
    # If the hub is unreachable, its client would retry for half a minute; use only its cache instead.
    unreachable = not can_be_reached(name)
    here = Path(name).exists() or unreachable
    try:
        config = AutoConfig.from_pretrained(name, local_files_only=here, trust_remote_code=True)
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=here, trust_remote_code=True)
    except (OSError, ValueError) as error:
        if unreachable and isinstance(error, OSError):
            hint = "is neither a folder here nor in the hub's cache on this machine, and the hub cannot be reached."
            raise ConfigError("MODEL", name, hint) from error
        reason = str(error).strip().splitlines()[0]
        raise ConfigError("MODEL", name, f"contains no loadable model: {reason}") from error
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
    )
