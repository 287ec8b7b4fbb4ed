"""Groups the clusters of all prompts into themes, by where and how their responses depart from the right ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from meds_openrlhf.rollouts.texts import ResponseText
from meds_openrlhf.themes.departure import NO_CALCULATION, ROLES, Departure, Problem

MOST_THEMES = 20
NEAR = 0.65  # cosine distance below which clusters are of one theme, however few themes there are
NO_THEME = -1
RELATION, CALCULATION, WORDS = 0.5, 0.3, 1.0  # weights of what is compared
_COMPARED, _NAMED = 3, 5  # words of the longest phrase, to compare clusters and to name themes
_USUAL = 0.4  # the share of a theme's responses that have what it is named by


@dataclass(frozen=True)
class PromptTexts:
    """A prompt, some right responses to it, and its label; all but the prompt may be missing."""

    prompt: str
    right: list[str]
    truth: str | None = None

    @cached_property
    def problem(self) -> Problem:
        """What is known of right solutions."""
        return Problem(self.prompt, self.right, self.truth)


@dataclass(frozen=True)
class ClusterTexts:
    """A cluster's prompt, and some of its responses, possibly none."""

    of: PromptTexts
    responses: list[ResponseText]

    @cached_property
    def departures(self) -> list[Departure]:
        """Where each response departs."""
        return [self.of.problem.departure(response) for response in self.responses]


@dataclass(frozen=True)
class Themes:
    """``theme`` (k,) is the number of each cluster's theme, NO_THEME if it has no text; ``names`` are the themes'.

    Themes are numbered by the rollouts in their clusters, the largest first.
    """

    theme: NDArray[np.int64]
    names: list[str]


def by_departure(clusters: Sequence[ClusterTexts], sizes: NDArray[np.int64], most: int = MOST_THEMES) -> Themes:
    """Group k clusters of ``sizes`` (k,) rollouts by where their responses depart from the right ones.

    Clusters are compared by the cosine of `departure_vectors`, and joined by average linkage until at most ``most``
    themes are left. docs/atlas.md compares this with other ways.
    """
    theme = np.full(len(clusters), NO_THEME, np.int64)
    departures = [[found for found in cluster.departures if found.part.stop] for cluster in clusters]
    with_text = np.array([bool(some) for some in departures], bool)
    if with_text.any():
        theme[with_text] = joined(departure_vectors([some for some in departures if some]), most)
    theme, kept = by_size(theme, sizes)
    return Themes(theme, _names(theme, departures, len(kept)))


def by_size(theme: NDArray[np.int64], sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[int]]:
    """Number the themes by their rollouts, the largest first; also returns the old number of each new one."""
    rollouts = np.bincount(theme[theme != NO_THEME], sizes[theme != NO_THEME])
    order = np.argsort(-rollouts, kind="stable")
    rank = np.append(np.argsort(order), NO_THEME)  # the last is that of NO_THEME
    return rank[theme], order[rollouts[order] > 0].tolist()


def departure_vectors(clusters: Sequence[Sequence[Departure]]) -> NDArray[np.float32]:
    """Return unit vectors (k, v) of how each cluster's responses relate, of their calculations, and of their words."""
    relations = [[departure.relation for departure in some] for some in clusters]
    calculations = [[part for departure in some for part in _parts(departure)] for some in clusters]
    words = phrase_vectors([[departure.words for departure in some] for some in clusters])
    blocks = [RELATION * _weighted(relations), CALCULATION * _weighted(calculations), WORDS * words]
    vectors = np.concatenate(blocks, axis=1)
    unit: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit


def _parts(departure: Departure) -> Iterator[str]:
    if departure.calculation:
        yield departure.calculation
        yield from _phrases(departure.calculation.split(), _COMPARED)


def _phrases(words: Sequence[str], longest: int) -> Iterator[str]:
    for length in range(1, longest + 1):
        for start in range(len(words) - length + 1):
            yield " ".join(words[start : start + length])


def phrase_vectors(texts: Sequence[Sequence[Sequence[str]]]) -> NDArray[np.float32]:
    """Return unit vectors (k, v) of the phrases in each cluster's texts; phrases of a single cluster are left out."""
    phrases = [[phrase for words in some for phrase in _phrases(words, _COMPARED)] for some in texts]
    return _weighted(phrases, min(2, len(texts)))


def _weighted(items: Sequence[Sequence[str]], fewest: int = 1) -> NDArray[np.float32]:
    """Return unit vectors (k, v) of how often each cluster has each item, weighted by how rare the item is."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]

    weights = TfidfVectorizer(
        analyzer=lambda of_cluster: of_cluster, min_df=fewest, max_features=4_000, sublinear_tf=True, dtype=np.float32
    )
    try:
        vectors: NDArray[np.float32] = weights.fit_transform(items).toarray()
    except ValueError:  # there is none
        vectors = np.zeros((len(items), 1), np.float32)
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


def _names(theme: NDArray[np.int64], departures: Sequence[Sequence[Departure]], themes: int) -> list[str]:
    """Name each theme by how its responses relate to right ones, with the usual calculation or the telling words.

    No two themes get the same name.
    """
    members: list[list[Departure]] = [[] for _ in range(themes)]
    for number, some in zip(theme.tolist(), departures):
        if number != NO_THEME:
            members[number] += some
    having = [Counter(phrase for one in some for phrase in {*_phrases(one.words, _NAMED)}) for some in members]
    everywhere = sum(having, Counter())
    names: list[str] = []
    for some, counts in zip(members, having):
        relation, calculation = _usual([one.relation for one in some]), _usual([one.calculation for one in some])
        telling = _telling(counts, everywhere, len(some), sum(map(len, members)) - len(some))
        known = "" if relation == NO_CALCULATION else relation or (calculation and "calculates")
        plain = ": ".join(part for part in (known, calculation) if part)
        quoted = f"“{telling}”" if telling else ""
        longer = ", ".join(part for part in (plain, quoted) if part)
        wanted = (plain, longer) if calculation else (longer, plain)
        unnamed = f"{plain or 'other errors'} ({len(names) + 1})"
        names.append(next((name for name in wanted if name and name not in names), unnamed))
    return names


def _usual(values: Sequence[str]) -> str:
    """The most frequent value, if enough responses have it."""
    ((value, number),) = Counter(values).most_common(1)
    return value if number >= _USUAL * len(values) else ""


def _telling(counts: Counter[str], everywhere: Counter[str], own: int, others: int) -> str:
    """The phrase that most responses have and most others have not, the more words of language the better."""
    told = {
        phrase: ((n / own - (everywhere[phrase] - n) / max(others, 1)) * weight**0.5, phrase)
        for phrase, n in counts.items()
        if n >= min(2, own) and (weight := _language(phrase))
    }
    return max(told, key=told.__getitem__, default="")


def _language(phrase: str) -> float:
    """The number of a phrase's words of language that mean something, less half of the others."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    words = phrase.split()
    known = sum(
        len(word) > 2 and word.isalpha() and word not in ROLES and word not in ENGLISH_STOP_WORDS for word in words
    )
    return max(known - 0.5 * (len(words) - known), 0)
