"""The reference algorithm, written plainly and on its own: no code of the package, one vector at a time.

Its settings are those of the preset "reference".
"""

import hdbscan
import numpy as np
from sklearn.neighbors import NearestNeighbors


class ReferenceMemory:
    """Vectors per prompt and verdict, with the labels of the last clustering."""

    def __init__(self) -> None:
        self.vectors: dict[tuple[str, bool], list[np.ndarray]] = {}
        self.labels: dict[tuple[str, bool], list[int]] = {}

    def visit(self, prompt: str, correct: bool, vectors: np.ndarray) -> tuple[list[int | None], list[int]]:
        """Labels (None on a first visit) and sizes of new ``vectors`` (m, d), which are then added and clustered."""
        vectors = [np.asarray(vector, dtype=np.float64) for vector in vectors]
        vectors = [vector / np.linalg.norm(vector) if np.linalg.norm(vector) > 0 else vector for vector in vectors]
        key = (prompt, correct)
        found = [self._label(key, vector) for vector in vectors]
        sizes = [0 if label is None else self.labels[key].count(label) for label in found]
        self.vectors.setdefault(key, []).extend(vectors)
        self.labels[key] = self._cluster(np.array(self.vectors[key]))
        return found, sizes

    def _label(self, key: tuple[str, bool], vector: np.ndarray) -> int | None:
        if not self.labels.get(key):
            return None
        stored = np.array(self.vectors[key])
        model = NearestNeighbors(n_neighbors=min(3, len(stored)), metric="cosine").fit(stored)
        _, nearest = model.kneighbors(vector[None])
        votes = [self.labels[key][index] for index in nearest[0]]
        most = max(votes.count(label) for label in votes)
        return min(label for label in votes if votes.count(label) == most)

    @staticmethod
    def _cluster(vectors: np.ndarray) -> list[int]:
        if len(vectors) < 2:
            return [-1] * len(vectors)
        return [int(label) for label in hdbscan.HDBSCAN(min_cluster_size=2, min_samples=1).fit(vectors).labels_]
