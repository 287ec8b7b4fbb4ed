"""Builds the transform from stored logits to the vectors to cluster, from the settings under ``meds.features``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.method import ANSWERS
from meds_openrlhf.config.schema import FeatureSettings, MemorySettings
from meds_openrlhf.features.transform import FeatureTransform


def features_of_rows(features: FeatureSettings, memory: MemorySettings) -> FeatureSettings:
    """Return the feature settings for this memory's rows: final answers and the user's features stay as they are."""
    if memory.preset == ANSWERS:
        return replace(features, layers="all", difference="none", normalize="none")
    return features if features.function is None else replace(features, layers="all")


def feature_transform(settings: FeatureSettings) -> FeatureTransform:
    """Return the transform from the logits of all layers to the vectors to cluster."""
    return FeatureTransform(settings.layers, settings.difference, settings.normalize)


def transform_of(settings: FeatureSettings, layers: int) -> FeatureTransform:
    """Return the transform for rows of ``layers`` layers. Raises ConfigError if there are too few layers."""
    transform = feature_transform(settings)
    try:
        transform.select(np.zeros((1, layers)))
    except ValueError as error:
        hint = f"does not fit rows of {layers} layers. Name fewer."
        raise ConfigError("meds.features.layers", settings.layers, hint) from error
    return transform
