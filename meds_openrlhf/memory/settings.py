"""Converts the settings under ``meds.`` into what a memory and its tools use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.loader import settings_of
from meds_openrlhf.config.method import ANSWERS
from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.features import final_answer
from meds_openrlhf.features.function import FeatureFunction
from meds_openrlhf.features.settings import features_of_rows, transform_of
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.snapshot import ANSWERS as OF_ANSWERS
from meds_openrlhf.memory.snapshot import MemoryFormat

# Feature settings that a memory's format stores.
FEATURE_SETTINGS = ("layers", "difference", "normalize")


def settings_of_format(memory_format: MemoryFormat, changed: Mapping[str, Any] | None = None) -> MedsSettings:
    """Return settings for a memory without its run's configuration, as far as its format records them.

    ``changed`` are settings by full name, which take precedence. Raises ConfigError for an unknown setting.
    """
    recorded = memory_format.features
    known = {f"meds.features.{name}": recorded[name] for name in FEATURE_SETTINGS if name in recorded}
    if memory_format.holds_answers:
        known = {"meds.memory.preset": ANSWERS}
    return settings_with({**known, **(changed or {})})


def settings_with(changed: Mapping[str, Any]) -> MedsSettings:
    """Return the defaults with settings changed by full name, such as ``meds.memory.preset``, for rows without a run.

    Raises ConfigError for an unknown setting.
    """
    return settings_of({"meds.run_dir": ".", **changed})


def memory_format(meds: MedsSettings, policy: Any, function: FeatureFunction | None) -> MemoryFormat:
    """Return the format of a memory with these settings, for a model with the Hugging Face configuration ``policy``.

    A memory of final answers needs no model. ``function`` is the user's own feature, if there is one.
    """
    features = features_of_rows(meds.features, meds.memory)
    row_features = {**asdict(features), "answer_openings": list(features.answer_openings)}
    del row_features["function"]  # the file may move; its content counts
    if meds.memory.preset == ANSWERS:
        return MemoryFormat(meds.memory.shards, final_answer.VALUES, dict(OF_ANSWERS), row_features)
    text = policy.get_text_config()  # in a vision-language model, the decoder has a separate configuration
    model = {
        "architecture": (policy.architectures or [type(policy).__name__])[0],
        "layers": text.num_hidden_layers,
        "hidden": text.hidden_size,
        "vocabulary": text.vocab_size,
        **({} if function is None else {"function": function.digest}),
    }
    values = text.num_hidden_layers if function is None else function.values
    return MemoryFormat(meds.memory.shards, values, model, row_features)


def transform_of_rows(meds: MedsSettings, memory_format: MemoryFormat) -> FeatureTransform:
    """Return the transform for a stored memory's rows. Raises ConfigError if the preset or the layers do not match."""
    if memory_format.holds_answers != (meds.memory.preset == ANSWERS):
        content = "final answers" if memory_format.holds_answers else "layer logits"
        raise ConfigError("meds.memory.preset", meds.memory.preset, f"does not fit this memory, which holds {content}")
    return transform_of(features_of_rows(meds.features, meds.memory), memory_format.layers)
