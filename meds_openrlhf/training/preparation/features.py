"""What the memory's rows are: layer logits, final answers, or a function of the user's; checked before a start."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from meds_openrlhf.config import RunConfig
from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.features import final_answer
from meds_openrlhf.features.function import FROM_TEXTS, FeatureFunction, load_function
from meds_openrlhf.memory.settings import features_of_rows, remembers_answers
from meds_openrlhf.memory.snapshot import ANSWERS, MemoryFormat


def function_of(config: RunConfig, policy: Any) -> FeatureFunction | None:
    """Return the user's own feature, if the run has one. Raises ConfigError if it does not work."""
    file = config.meds.features.function
    if file is None or not config.meds.enabled:
        return None
    text = policy.get_text_config()
    return load_function(file, text.num_hidden_layers, text.hidden_size)


def are_recorded(config: RunConfig, function: FeatureFunction | None) -> bool:
    """Whether the policy records what the memory stores, layer logits or a function of hidden states."""
    from_texts = remembers_answers(config.meds.memory) or (function is not None and function.name == FROM_TEXTS)
    return config.meds.enabled and not from_texts


def with_absolute_function(meds: MedsSettings) -> MedsSettings:
    """Return the settings with an absolute path of the function, since workers have other working directories."""
    file = meds.features.function
    return meds if file is None else replace(meds, features=replace(meds.features, function=str(Path(file).absolute())))


def memory_format(config: RunConfig, policy: Any, function: FeatureFunction | None) -> MemoryFormat:
    """Return the memory format for this policy and configuration."""
    features = features_of_rows(config.meds.features, config.meds.memory)
    row_features = {**asdict(features), "answer_openings": list(features.answer_openings)}
    del row_features["function"]  # the file may move; its content counts
    if remembers_answers(config.meds.memory):
        return MemoryFormat(config.meds.memory.shards, final_answer.VALUES, dict(ANSWERS), row_features)
    text = policy.get_text_config()  # in a vision-language model, the decoder has a separate configuration
    model = {
        "architecture": (policy.architectures or [type(policy).__name__])[0],
        "layers": text.num_hidden_layers,
        "hidden": text.hidden_size,
        "vocabulary": text.vocab_size,
        **({} if function is None else {"function": function.digest}),
    }
    values = text.num_hidden_layers if function is None else function.values
    return MemoryFormat(config.meds.memory.shards, values, model, row_features)
