"""From the settings under ``meds.`` to what shards and tools go by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.loader import build, unflatten
from meds_openrlhf.config.schema import FeatureSettings, MedsSettings, MemorySettings
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.presets import ANSWERS, OVERRIDES, Method, make_method
from meds_openrlhf.memory.snapshot import MemoryFormat

# A preset's settings that a user may change one by one.
METHOD_SETTINGS = tuple(name for name in OVERRIDES if hasattr(MemorySettings, name))

# What a memory says itself of how recorded logits become features.
FEATURE_SETTINGS = ("layers", "difference", "normalize")


def method_of(settings: MemorySettings) -> Method:
    """The preset with those single settings that are not null."""
    return make_method(settings.preset, **{name: getattr(settings, name) for name in METHOD_SETTINGS})


def settings_of_format(memory_format: MemoryFormat, changed: Mapping[str, Any] | None = None) -> MedsSettings:
    """For a memory without its run's configuration, which still says what its rows are.

    ``changed``: other settings, flat and without ``meds.``; they win. Raises ConfigError for one that is no setting.
    """
    held = memory_format.features
    own = {f"features.{name}": held[name] for name in FEATURE_SETTINGS if name in held}
    if memory_format.holds_answers:
        own = {"memory.preset": ANSWERS}
    return build(MedsSettings, unflatten({"run_dir": ".", **own, **(changed or {})}), "meds")


def remembers_answers(settings: MemorySettings) -> bool:
    """Whether rows are final answers, and not logits."""
    return settings.preset == ANSWERS


def features_of_rows(features: FeatureSettings, memory: MemorySettings) -> FeatureSettings:
    """The settings as they are for this memory's rows: a final answer is compared whole, as it is."""
    if not remembers_answers(memory):
        return features
    return replace(features, layers="all", difference="none", normalize="none", logit_lens=False)


def feature_transform(settings: FeatureSettings) -> FeatureTransform:
    """From the logits of all layers to what is clustered."""
    return FeatureTransform(settings.layers, settings.difference, settings.normalize)


def transform_of_rows(meds: MedsSettings, memory_format: MemoryFormat) -> FeatureTransform:
    """What a stored memory's rows are clustered by. Raises ConfigError where the preset or the layers do not fit."""
    if memory_format.holds_answers != remembers_answers(meds.memory):
        held = "final answers" if memory_format.holds_answers else "layer logits"
        raise ConfigError("meds.memory.preset", meds.memory.preset, f"does not fit this memory, which holds {held}")
    return transform_of(features_of_rows(meds.features, meds.memory), memory_format.layers)


def transform_of(settings: FeatureSettings, layers: int) -> FeatureTransform:
    """From the logits of ``layers`` layers to what is clustered. Raises ConfigError where there are too few layers."""
    transform = feature_transform(settings)
    try:
        transform.select(np.zeros((1, layers)))
    except ValueError as error:
        hint = f"does not fit rows of {layers} layers; name fewer"
        raise ConfigError("meds.features.layers", settings.layers, hint) from error
    return transform
