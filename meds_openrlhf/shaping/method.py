"""What a method that shapes a step sees, and its two hooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.config.schema import MedsSettings

if TYPE_CHECKING:
    from typing_extensions import Self  # of Python 3.11's typing

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Step:
    """The rollouts of a step: g groups of the N responses to a prompt. All arrays are (g, N)."""

    reward: NDArray[np.floating]  # raw
    correct: Bools
    cluster_size: NDArray[np.integer]  # stored rows in the response's cluster, 0 without one
    has_row: Bools  # whether the memory could store it; not, for example, without an answer
    is_extra: Bools  # trained on in addition to the batch (meds.penalty.extras): groups without a right response
    success: Floats  # the share of right responses in the prompt's earlier visits; 0 if none is remembered


class Change(NamedTuple):
    """What happens to a response's advantages: each is multiplied by ``factor``, then ``added`` is added.

    Both are (g, N), or broadcast to it; the defaults change nothing.
    """

    factor: Floats | float = 1.0
    added: Floats | float = 0.0


class Advantages(Protocol):
    """A step's advantages in a trainer, one a token or one a response."""

    def outcomes(self) -> NDArray[np.floating]:
        """Return them (g, N) as one a response: the mean over its tokens."""

    def change(self, change: Change) -> None:
        """Apply a change."""

    def cap(self, unshaped: Self, correct: Bools) -> None:
        """Apply `law.capped`, with the advantages that the same trainer gives without the memory."""


class Method:
    """A method that changes the rewards of a step, its advantages, or both; a subclass overrides what it changes.

    `law.shaped_advantages` calls ``rewards`` of all methods, then ``advantages``: first of those that replace the
    estimator, then of those within the law, then of the others.
    """

    replaces_estimator: ClassVar = False
    """Whether ``advantages`` adds what the trainer would estimate from rewards; the trainer then gets rewards of 0."""
    may_reward_errors: ClassVar = False
    """Whether the law does not apply: the advantages of wrong responses may rise."""
    asks_memory: ClassVar = True
    """Whether it acts by what the memory says of errors; the memory's effect is measured on such methods alone."""

    @classmethod
    def of(cls, meds: MedsSettings) -> Self | None:
        """Return the method with a run's settings, None if they do not ask for it."""
        raise NotImplementedError

    def rewards(self, step: Step, rewards: Floats) -> Floats:
        """Return the rewards (g, N) to train on, from those of the methods before: at first the raw ones."""
        return rewards

    def advantages(self, step: Step, rewards: NDArray[np.floating], so_far: Advantages) -> Change | None:
        """Return the change of the advantages ``so_far``, which are of these ``rewards`` (g, N); None for no change.

        Both are 0 for extras.
        """
        return None
