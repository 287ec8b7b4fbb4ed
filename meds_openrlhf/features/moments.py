"""Running moments of vectors, and the top-1 eigen ratio, which measures how concentrated their variance is.

Each shard keeps the moments of its stored rows and the pool merges them. This gives the covariance of all rows without
a pass over the data and with O(d^2) memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Count, mean (d,) and scatter matrix (d, d), the sum of outer products of deviations from the mean."""

    count: int
    mean: FloatArray
    scatter: FloatArray

    @staticmethod
    def of(vectors: FloatArray) -> Moments:
        """Return the moments of ``vectors`` (n, d); the count is 0 if there are no vectors."""
        count, dimensions = vectors.shape
        if count == 0:
            return Moments(0, np.zeros(dimensions), np.zeros((dimensions, dimensions)))
        mean = vectors.mean(axis=0)
        deviations = vectors - mean
        return Moments(count, mean, np.einsum("nd,ne->de", deviations, deviations))  # BLAS would wake all cores

    def merge(self, other: Moments) -> Moments:
        """Return the moments of both sets together (Chan, Golub and LeVeque, 1979)."""
        if not self.count or not other.count:
            return self if self.count else other
        count = self.count + other.count
        gap = other.mean - self.mean
        mean = self.mean + gap * (other.count / count)
        scatter = self.scatter + other.scatter + np.outer(gap, gap) * (self.count * other.count / count)
        return Moments(count, mean, scatter)

    def eigen_ratio(self) -> float | None:
        """Return the top-1 eigen ratio: the covariance's largest eigenvalue as a share of their sum (Section 4.3).

        It is 1 if all vectors vary along one line and 1/d if they vary equally in every direction; None if there are
        fewer than two vectors or all are equal.
        """
        rounding = self.count * (8 * np.finfo(float).eps) ** 2 * (self.mean @ self.mean)
        if self.count < 2 or np.trace(self.scatter) <= rounding:
            return None
        values = np.maximum(np.linalg.eigvalsh(self.scatter), 0.0)  # rounding may make a value slightly negative
        return float(values[-1] / values.sum())


NO_MOMENTS = Moments(0, np.zeros(0), np.zeros((0, 0)))


def merge_moments(parts: list[Moments]) -> Moments:
    """Return the moments of all parts together."""
    total = NO_MOMENTS
    for part in parts:
        total = total.merge(part)
    return total
