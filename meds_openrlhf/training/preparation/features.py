"""What the memory's rows are: layer logits, final answers, or a function of the user's; checked before a start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from meds_openrlhf.config import RunConfig
from meds_openrlhf.config.method import ANSWERS
from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.features.function import FROM_TEXTS, FeatureFunction, load_function


def function_of(config: RunConfig, policy: Any) -> FeatureFunction | None:
    """Return the user's own feature, if the run has one. Raises ConfigError if it does not work."""
    file = config.meds.features.function
    if file is None or not config.meds.enabled:
        return None
    text = policy.get_text_config()
    return load_function(file, text.num_hidden_layers, text.hidden_size)


def are_recorded(config: RunConfig, function: FeatureFunction | None) -> bool:
    """Whether the policy records what the memory stores, layer logits or a function of hidden states."""
    from_texts = config.meds.memory.preset == ANSWERS or (function is not None and function.name == FROM_TEXTS)
    return config.meds.enabled and not from_texts


def with_absolute_function(meds: MedsSettings) -> MedsSettings:
    """Return the settings with an absolute path of the function, since workers have other working directories."""
    file = meds.features.function
    return meds if file is None else replace(meds, features=replace(meds.features, function=str(Path(file).absolute())))
