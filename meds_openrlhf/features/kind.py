"""What a row of the memory is: what makes it, how many numbers it has, how rows are compared, what may read it.

Rows are layer logits, final answers, or values of a function of the user's own. The function is in a Python file,
``meds.features.function``, which has one of these two functions:

    def from_hidden_states(hidden_states):    # torch float32 (P, N, H): P answers, N layers, hidden size H
        return ...                            # torch (P, d)

    def from_texts(prompts, responses):       # two lists of P texts
        return ...                            # numpy (P, d)

It is tried on trial inputs before a run starts, which also gives d, the number of values in a vector.
"""

from __future__ import annotations

import hashlib
import runpy
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.method import ANSWERS, EQUAL
from meds_openrlhf.config.schema import FeatureSettings, MedsSettings, MemorySettings
from meds_openrlhf.features import final_answer
from meds_openrlhf.features.transform import FeatureTransform

_ANSWERS, _FUNCTION = {"rows": "final answers"}, "function"  # in a memory's format
SETTING = "meds.features.function"
FROM_HIDDEN_STATES, FROM_TEXTS = "from_hidden_states", "from_texts"
TRIED = 2  # trial inputs
MOST_VALUES = 8_192  # of a row of the memory: a function's, or one for each layer; moments are of each pair


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
        is_recorded = function.name == FROM_HIDDEN_STATES
        return Feature(kind, function.values, is_recorded, {**model, _FUNCTION: function.digest})


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


# ── a function of the user's own ──


class FeatureFunctionError(RuntimeError):
    """The user's function failed during a run."""


@dataclass(frozen=True)
class FeatureFunction:
    """A function that was tried: its ``path``, its ``name`` in the file, and the number of ``values`` of a vector."""

    path: Path
    name: str
    values: int
    call: Callable[..., Any]

    @property
    def digest(self) -> str:
        """Identifies the file's content: other code gives other features."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]

    def __call__(self, rows: int, *arguments: Any) -> NDArray[np.float32]:
        """Return the vectors (rows, values); a vector with NaN means that the row has no feature.

        Raises FeatureFunctionError if the function raises or returns another shape.
        """
        if not rows:
            return np.empty((0, self.values), np.float32)
        try:
            found = _as_matrix(self.call(*arguments))
        except (Exception, SystemExit) as error:  # of any kind: it is the user's code
            raise FeatureFunctionError(f"{self.path}: {self.name} raised {type(error).__name__}: {error}") from error
        if found.shape != (rows, self.values):
            shapes = f"{found.shape} instead of {(rows, self.values)}"
            raise FeatureFunctionError(f"{self.path}: {self.name} returned values of shape {shapes}")
        return found


def load_function(file: str, layers: int, hidden: int) -> FeatureFunction:
    """Load the function and try it, for a policy of ``layers`` layers with ``hidden`` values each.

    Raises ConfigError if the file cannot be run, has none or both of the functions, or the function fails.
    """
    path = Path(file)
    if not path.is_file():
        raise ConfigError(SETTING, file, "does not exist. Name a Python file.")
    try:
        content = runpy.run_path(file)
    except (Exception, SystemExit) as error:  # of any kind: it is the user's code
        raise ConfigError(SETTING, file, f"cannot be run: {type(error).__name__}: {error}") from error
    names = [name for name in (FROM_HIDDEN_STATES, FROM_TEXTS) if callable(content.get(name))]
    if len(names) != 1:
        has = "has both {} and {}" if names else "has neither {} nor {}"
        raise ConfigError(SETTING, file, f"{has.format(FROM_HIDDEN_STATES, FROM_TEXTS)}. Define one of them.")
    (name,) = names
    try:
        found = _as_matrix(content[name](*_trial_inputs(name, layers, hidden)))
    except (Exception, SystemExit) as error:  # of any kind: it is the user's code
        hint = f"fails on {TRIED} trial inputs: {type(error).__name__}: {error}"
        raise ConfigError(SETTING, file, hint) from error
    if found.ndim != 2 or len(found) != TRIED or not found.shape[1]:
        hint = f"returns values of shape {found.shape} for {TRIED} inputs. Return a matrix with one row per input."
        raise ConfigError(SETTING, file, hint)
    if found.shape[1] > MOST_VALUES:
        hint = f"returns {found.shape[1]} values for an input. Project them to at most {MOST_VALUES}."
        raise ConfigError(SETTING, file, hint)
    if not np.isfinite(found).all():
        hint = f"returns NaN or infinite values for {TRIED} trial inputs. Return finite numbers."
        raise ConfigError(SETTING, file, hint)
    return FeatureFunction(path.absolute(), name, found.shape[1], content[name])


def _trial_inputs(name: str, layers: int, hidden: int) -> tuple[Any, ...]:
    if name == FROM_TEXTS:
        return ["What is 1+1?", "What is 2+3?"], ["It is \\boxed{2}.", "2+3 is 6, so \\boxed{6}."]
    import torch

    return (torch.randn(TRIED, layers, hidden, generator=torch.Generator().manual_seed(0)),)


def _as_matrix(found: Any) -> NDArray[np.float32]:
    detached = found.detach().float().cpu().numpy() if hasattr(found, "detach") else found
    return np.asarray(detached, np.float32)
