"""Groups the clusters of all prompts into themes, by the words at which their responses depart from the right ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from meds_openrlhf.themes.departure import departure, numbers_in

MOST_THEMES = 20
NEAR = 0.7  # cosine distance below which clusters are of one theme, however few themes there are
NO_THEME = -1
_COMPARED, _NAMED = 3, 6  # words of the longest phrase, to compare clusters and to name themes


@dataclass(frozen=True)
class ClusterTexts:
    """A cluster's prompt, some of its responses, and some right responses to the prompt; any of them may be missing."""

    prompt: str
    responses: list[str]
    right: list[str]

    @cached_property
    def numbers(self) -> tuple[frozenset[str], frozenset[str]]:
        """The numbers in the prompt, and those in the right responses."""
        return numbers_in([self.prompt]), numbers_in(self.right)


@dataclass(frozen=True)
class Themes:
    """``theme`` (k,) is the number of each cluster's theme, NO_THEME if it has no text; ``names`` are the themes'.

    Themes are numbered by the rollouts in their clusters, the largest first.
    """

    theme: NDArray[np.int64]
    names: list[str]


def by_departure(clusters: Sequence[ClusterTexts], sizes: NDArray[np.int64], most: int = MOST_THEMES) -> Themes:
    """Group k clusters of ``sizes`` (k,) rollouts by where their responses depart from the right ones.

    Clusters are compared by the cosine of their phrases of one to three words, weighted by how rare a phrase is, and
    joined by average linkage until at most ``most`` themes are left. docs/atlas.md compares this with other ways.
    """
    departures = [[departure(response, *cluster.numbers)[0] for response in cluster.responses] for cluster in clusters]
    theme = np.full(len(departures), NO_THEME, np.int64)
    with_text = np.array([any(texts) for texts in departures], bool)
    if with_text.any():
        theme[with_text] = joined(phrase_vectors([texts for texts in departures if any(texts)]), most)
    theme, kept = by_size(theme, sizes)
    return Themes(theme, _names(theme, departures, len(kept)))


def by_size(theme: NDArray[np.int64], sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[int]]:
    """Number the themes by their rollouts, the largest first; also returns the old number of each new one."""
    rollouts = np.bincount(theme[theme != NO_THEME], sizes[theme != NO_THEME])
    order = np.argsort(-rollouts, kind="stable")
    rank = np.append(np.argsort(order), NO_THEME)  # the last is that of NO_THEME
    return rank[theme], order[rollouts[order] > 0].tolist()


def _phrases(words: list[str], longest: int) -> Iterator[str]:
    for length in range(1, longest + 1):
        for start in range(len(words) - length + 1):
            yield " ".join(words[start : start + length])


def phrase_vectors(departures: Sequence[Sequence[list[str]]]) -> NDArray[np.float32]:
    """Return unit vectors (k, v) of the phrases in each cluster's texts; phrases of a single cluster are left out."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]

    def of_cluster(texts: Sequence[list[str]]) -> list[str]:
        return [phrase for words in texts for phrase in _phrases(words, _COMPARED)]

    weights = TfidfVectorizer(
        analyzer=of_cluster, min_df=min(2, len(departures)), max_features=4_000, sublinear_tf=True, dtype=np.float32
    )
    try:
        vectors: NDArray[np.float32] = weights.fit_transform(departures).toarray()
    except ValueError:  # no phrase is in two clusters
        vectors = np.zeros((len(departures), 1), np.float32)
    return vectors


def joined(vectors: NDArray[np.float32], most: int) -> NDArray[np.int64]:
    """Return the group (k,) of each of the unit vectors (k, v), by average linkage.

    Vectors nearer than `NEAR` are joined, and then others until there are at most ``most`` groups.
    """
    if len(vectors) == 1:
        return np.zeros(1, np.int64)
    distances = np.clip(1 - vectors @ vectors.T, 0, None)
    tree = linkage(squareform(distances, checks=False), "average")
    joins = int((tree[:, 2] < NEAR).sum())
    groups: NDArray[np.int64] = fcluster(tree, min(most, len(vectors) - joins), "maxclust").astype(np.int64) - 1
    return groups


def _names(theme: NDArray[np.int64], departures: Sequence[Sequence[list[str]]], themes: int) -> list[str]:
    """Name each theme by the phrase that most of its responses have and most others have not; a longer one counts more.

    No two themes get the same name.
    """
    having: list[Counter[str]] = [Counter() for _ in range(themes)]
    responses = np.zeros(themes, np.int64)
    for number, texts in zip(theme.tolist(), departures):
        if number != NO_THEME:
            responses[number] += len(texts)
            having[number].update(phrase for words in texts for phrase in set(_phrases(words, _NAMED)))
    everywhere = sum(having, Counter())
    names: list[str] = []
    for counts, own in zip(having, responses.tolist()):
        others = max(int(responses.sum()) - own, 1)
        told = {
            phrase: ((n / own - (everywhere[phrase] - n) / others) * len(phrase.split()) ** 0.75, phrase)
            for phrase, n in counts.items()
            if phrase not in names
        }
        names.append(max(told, key=told.__getitem__) if told else f"other ({len(names) + 1})")
    return names
