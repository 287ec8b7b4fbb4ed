"""Running moments of vectors, and the eigen ratio that says how much they all point one way.

Shards keep moments of what they store and the pool adds them up: the covariance of everything stored, with no pass
over the data and O(d^2) memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.memory.compiled import compiled

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Spectrum:
    """How the variance is shared out among the d eigenvalues of the covariance; p are their shares of the sum.

    ``top_eigen_ratio``, the largest p (Section 4.3), is 1 where all vectors vary along one line and 1/d where they vary
    alike in every direction. The two others say along how many: ``participation_ratio`` is 1 / sum(p^2),
    ``effective_rank`` exp(-sum(p ln p)) (Roy and Vetterli, 2007), each between 1 and d.
    """

    top_eigen_ratio: float
    participation_ratio: float
    effective_rank: float


@dataclass(frozen=True)
class Moments:
    """Count, mean (d,) and scatter matrix (d, d), the sum of outer products of deviations from the mean."""

    count: int
    mean: FloatArray
    scatter: FloatArray

    @staticmethod
    def of(vectors: FloatArray) -> Moments:
        """Moments of ``vectors`` (n, d); none of them gives a count of 0."""
        count, dimensions = vectors.shape
        if count == 0:
            return Moments(0, np.zeros(dimensions), np.zeros((dimensions, dimensions)))
        mean = vectors.mean(axis=0)
        return Moments(count, mean, _scatter(vectors - mean))

    def merge(self, other: Moments) -> Moments:
        """Moments of both sets together (Chan, Golub and LeVeque, 1979)."""
        if not self.count or not other.count:
            return self if self.count else other
        count = self.count + other.count
        gap = other.mean - self.mean
        mean = self.mean + gap * (other.count / count)
        scatter = self.scatter + other.scatter + np.outer(gap, gap) * (self.count * other.count / count)
        return Moments(count, mean, scatter)

    def mapped(self, matrix: FloatArray) -> Moments:
        """Moments of the vectors multiplied by ``matrix`` (k, d)."""
        if self.count == 0:
            return self
        return Moments(self.count, matrix @ self.mean, matrix @ self.scatter @ matrix.T)

    def spectrum(self) -> Spectrum | None:
        """How the vectors' variance is shared out; None for fewer than two vectors, or where all are the same."""
        rounding = self.count * (8 * np.finfo(float).eps) ** 2 * (self.mean @ self.mean)
        if self.count < 2 or np.trace(self.scatter) <= rounding:
            return None
        values = np.maximum(np.linalg.eigvalsh(self.scatter), 0.0)  # rounding may leave one just below
        shares = values / values.sum()
        positive = shares[shares > 0]
        return Spectrum(
            top_eigen_ratio=float(shares[-1]),
            participation_ratio=float(1 / (shares**2).sum()),
            effective_rank=float(np.exp(-(positive * np.log(positive)).sum())),
        )


@compiled
def _scatter(deviations: FloatArray) -> FloatArray:
    """The sum of outer products of rows (n, d). BLAS would set every core to work on what takes one a millisecond."""
    dimensions = deviations.shape[1]
    scatter = np.zeros((dimensions, dimensions))
    for row in range(len(deviations)):
        for left in range(dimensions):
            for right in range(dimensions):
                scatter[left, right] += deviations[row, left] * deviations[row, right]
    return scatter


NO_MOMENTS = Moments(0, np.zeros(0), np.zeros((0, 0)))


def merge_moments(parts: list[Moments]) -> Moments:
    """Moments of all parts together."""
    total = NO_MOMENTS
    for part in parts:
        total = total.merge(part)
    return total
