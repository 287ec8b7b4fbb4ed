"""Intervals of a single mean."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.evaluation.intervals import DIFFERENCES, SCORES, mean_intervals

Scores = Sequence[float] | NDArray[np.float64]


def interval_of(scores: Scores, corners: Any = SCORES, **options: Any) -> tuple[float, float]:
    """The interval of the mean of scores (P,)."""
    low, high = mean_intervals([np.asarray(scores, np.float64)[:, None]], corners, **options)[0]
    return float(low), float(high)


def interval_of_difference(scores: Scores, others: Scores) -> tuple[float, float]:
    """The interval of the mean difference of paired scores (P,)."""
    return interval_of(np.subtract(scores, others), DIFFERENCES)
