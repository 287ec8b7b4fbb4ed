"""Builds the transform from stored logits to the vectors to cluster, from a run's settings."""

from __future__ import annotations

from dataclasses import replace

from meds_openrlhf.config.method import ANSWERS, EQUAL
from meds_openrlhf.config.schema import FeatureSettings, MedsSettings, MemorySettings
from meds_openrlhf.features.transform import FeatureTransform


def features_of_rows(features: FeatureSettings, memory: MemorySettings) -> FeatureSettings:
    """Return the feature settings for this memory's rows: final answers and the user's features stay as they are.

    The user's features are scaled, unless equal ones are to be found: [1] and [2] point in the same direction.
    """
    if memory.preset in (ANSWERS, EQUAL):
        return replace(features, layers="all", difference="none", normalize="none")
    return features if features.function is None else replace(features, layers="all")


def transform_of(meds: MedsSettings, layers: int | None = None) -> FeatureTransform:
    """Return the transform from the memory's rows to the vectors to cluster.

    Raises ConfigError if the rows have ``layers`` layers and these are too few.
    """
    settings = features_of_rows(meds.features, meds.memory)
    transform = FeatureTransform(settings.layers, settings.difference, settings.normalize)
    if layers is not None:
        transform.dimensions(layers)
    return transform
