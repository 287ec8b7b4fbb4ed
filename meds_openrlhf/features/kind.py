"""What a row of the memory is: what makes it, how many numbers it has, how rows are compared, what may read it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from meds_openrlhf.config.method import ANSWERS, EQUAL
from meds_openrlhf.config.schema import FeatureSettings, MedsSettings, MemorySettings
from meds_openrlhf.features import final_answer
from meds_openrlhf.features.function import load_function
from meds_openrlhf.features.transform import FeatureTransform

_ANSWERS, _FUNCTION = {"rows": "final answers"}, "function"  # in a memory's format


class Kind(Enum):
    """What rows are, in words."""

    LAYER_LOGITS = "layer logits"
    ANSWERS = "final answers"
    FUNCTION = "values of a function of the user's"

    @staticmethod
    def of(features: FeatureSettings, memory: MemorySettings) -> Kind:
        """Return what these settings remember."""
        if memory.preset == ANSWERS:
            return Kind.ANSWERS
        return Kind.LAYER_LOGITS if features.function is None else Kind.FUNCTION

    @staticmethod
    def in_format(model: dict[str, Any]) -> Kind:
        """Return what a memory holds, from the ``model`` of its format."""
        if model == _ANSWERS:
            return Kind.ANSWERS
        return Kind.FUNCTION if _FUNCTION in model else Kind.LAYER_LOGITS


@dataclass(frozen=True)
class Feature:
    """The rows of a run: their ``kind``, and their number of ``values``.

    ``is_recorded``: the policy records them while it recomputes log-probs; otherwise they are made of the texts.
    ``model`` identifies what makes them: rows of different models or functions are not comparable.
    """

    kind: Kind
    values: int
    is_recorded: bool
    model: dict[str, Any]

    @staticmethod
    def of(meds: MedsSettings, policy: Any) -> Feature:
        """Return the rows of these settings for a model with the Hugging Face configuration ``policy``.

        Final answers need no model. Without a memory nothing is recorded, and a function is not tried. Raises
        ConfigError if the user's function fails.
        """
        kind = Kind.of(meds.features, meds.memory)
        if kind is Kind.ANSWERS:
            return Feature(kind, final_answer.VALUES, False, dict(_ANSWERS))
        text = policy.get_text_config()  # in a vision-language model, the decoder has a separate configuration
        model = {
            "architecture": (policy.architectures or [type(policy).__name__])[0],
            "layers": text.num_hidden_layers,
            "hidden": text.hidden_size,
            "vocabulary": text.vocab_size,
        }
        if meds.features.function is None or not meds.enabled:
            return Feature(kind, text.num_hidden_layers, meds.enabled, model)
        function = load_function(meds.features.function, text.num_hidden_layers, text.hidden_size)
        return Feature(kind, function.values, not function.reads_texts, {**model, _FUNCTION: function.digest})


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
