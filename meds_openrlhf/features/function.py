"""A feature of the user's own: a function in a Python file, from hidden states or texts to a vector.

The file, ``meds.features.function``, has one of these two functions:

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.config.errors import ConfigError

SETTING = "meds.features.function"
FROM_HIDDEN_STATES, FROM_TEXTS = "from_hidden_states", "from_texts"
TRIED = 2  # trial inputs
MOST_VALUES = 8_192  # of a row of the memory: a function's, or one for each layer; moments are of each pair


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
    def reads_texts(self) -> bool:
        """Whether it computes from texts, not from hidden states."""
        return self.name == FROM_TEXTS

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
