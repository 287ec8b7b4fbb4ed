"""One prompt's memory: the features of its past errors and the labels of their last clustering."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.features.transform import unit_vectors
from meds_openrlhf.memory.clustering import NOISE, Clustering, Labels, assign, cluster

FloatArray = NDArray[np.float64]


class PromptMemory:
    """Features (n, d) of one prompt, in the order in which they came.

    ``assign`` answers from the last clustering, ``append`` adds rows that it has not seen yet, ``recluster`` sees all.
    """

    def __init__(self, dimensions: int) -> None:
        self._features = np.empty((0, dimensions), dtype=np.float64)
        self._unit = np.empty((0, dimensions), dtype=np.float64)
        self._labels: Labels = np.empty(0, dtype=np.int32)  # of the first len(_labels) rows

    def __len__(self) -> int:
        return len(self._features)

    @property
    def labels(self) -> Labels:
        """(n,) labels of the last clustering; rows that came later are missing."""
        return self._labels

    @property
    def clusters(self) -> int:
        """How many clusters the last clustering found."""
        return int(self._labels.max(initial=NOISE)) + 1

    def assign(self, features: FloatArray, neighbors: int) -> tuple[Labels, NDArray[np.int32]]:
        """For new ``features`` (m, d): labels (m,) and the sizes (m,) of those clusters, before they are added.

        Noise, and everything on a first visit, has size 0.
        """
        known = len(self._labels)
        labels = assign(unit_vectors(features), self._unit[:known], self._labels, neighbors)
        population = np.bincount(self._labels[self._labels != NOISE], minlength=1)
        sizes = np.where(labels == NOISE, 0, population[labels])
        return labels, sizes.astype(np.int32)

    def append(self, features: FloatArray) -> None:
        """Add rows (m, d); they take part from the next clustering on."""
        self._features = np.concatenate([self._features, features])
        self._unit = np.concatenate([self._unit, unit_vectors(features)])

    def recluster(self, settings: Clustering) -> None:
        """Cluster all rows anew."""
        self._labels = cluster(self._features, settings)
