"""Running moments of vectors, and the top-1 eigen ratio, which measures how concentrated their variance is.

Each shard keeps the moments of its stored rows and the pool merges them. This gives the covariance of all rows without
a pass over the data and with O(d^2) memory.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import UnusableFileError, open_file, require_unpacked, write_atomically

FloatArray = NDArray[np.float64]
WINDOW = 50  # steps


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


def merge_moments(parts: Iterable[Moments]) -> Moments:
    """Return the moments of all parts together."""
    return reduce(Moments.merge, parts, NO_MOMENTS)


class DiversityTracker:
    """Eigen ratios of the layer logits of wrong and of right rollouts: of a step, of the last ``window`` and of all.

    The memory's shards keep the moments of the stored rollouts, which are wrong ones unless `meds.memory.remember` says
    otherwise. Those of all right rollouts are here, as those of the sliding window. Checkpoints include them.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._saved: dict[str, deque[Moments]] = {
            "remembered": deque(maxlen=window),  # of each step
            "right": deque(maxlen=window),
            "within": deque(maxlen=window),  # of remembered rollouts, less the mean of their prompt
            "all_right": deque([NO_MOMENTS], maxlen=1),
        }

    def add(
        self, remembered: FloatArray, right: FloatArray, *, stored: Moments, prompts: NDArray[np.integer]
    ) -> dict[str, float]:
        """Add a step's features: of the stored rollouts (n, d), and of all right rollouts (m, d); returns the metrics.

        ``stored`` are the moments of all stored rows, ``prompts`` (n,) numbers of the stored rollouts' prompts. A
        metric is left out if there are too few vectors for it.
        """
        saved = self._saved
        saved["remembered"].append(Moments.of(remembered))
        saved["within"].append(Moments.of(_less_group_means(np.asarray(remembered, float), prompts)))
        saved["right"].append(Moments.of(right))
        saved["all_right"].append(saved["all_right"][0].merge(saved["right"][-1]))
        return {
            **_ratios("", saved["remembered"], stored),
            **_ratios("_within", saved["within"]),
            **_ratios("_right", saved["right"], saved["all_right"][0]),
        }

    def save(self, path: Path) -> None:
        """Write the state that a resumed run needs."""
        arrays = {
            f"{name}_{part}": np.array([getattr(moments, part) for moments in steps])
            for name, steps in self._saved.items()
            for part in ("count", "mean", "scatter")
        }
        content = BytesIO()
        np.savez(content, **arrays)  # type: ignore[arg-type]
        write_atomically(path, content.getvalue())

    def load(self, path: Path) -> None:
        """Restore the saved state, without unpickling. Raises ConfigError if the file is missing or damaged."""
        try:
            with open_file(path) as file, np.load(file, allow_pickle=False) as saved:
                packed = os.fstat(file.fileno()).st_size
                require_unpacked(path, packed, sum(info.file_size for info in saved.zip.infolist()))
                for name, steps in self._saved.items():
                    steps.clear()
                    parts = zip(saved[f"{name}_count"].tolist(), saved[f"{name}_mean"], saved[f"{name}_scatter"])
                    steps.extend(Moments(count, mean, scatter) for count, mean, scatter in parts)
        except (PermissionError, UnusableFileError):
            raise
        except Exception as error:  # whatever numpy and zipfile raise for a file that is damaged
            raise ConfigError("RUN", str(path), f"is damaged ({error}). Restore it from a backup.") from error


def _less_group_means(vectors: FloatArray, groups: NDArray[np.integer]) -> FloatArray:
    """Return vectors (n, d) less the mean of their group (n,)."""
    _, codes, counts = np.unique(groups, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), vectors.shape[1]))
    np.add.at(sums, codes, vectors)
    deviations = vectors - (sums / counts[:, None])[codes]
    return np.where(np.abs(deviations) > 1e-12 * np.abs(vectors), deviations, 0.0)  # equal vectors differ by rounding


def _ratios(kind: str, steps: deque[Moments], total: Moments = NO_MOMENTS) -> dict[str, float]:
    spans = {"all": total, "window": merge_moments(steps), "step": steps[-1]}
    ratios = {f"meds/eigen_ratio{kind}_{span}": moments.eigen_ratio() for span, moments in spans.items()}
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}
