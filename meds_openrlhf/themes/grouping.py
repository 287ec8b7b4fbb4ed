"""Groups the clusters of all prompts into themes, by where and how their responses depart from the right ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.rollouts.texts import ResponseText
from meds_openrlhf.themes.departure import NO_CALCULATION, ROLES, Departure, Problem

MOST_THEMES = 20
NEAR = 0.65  # cosine distance below which clusters are of one theme, however few themes there are
NO_THEME = -1
MOST_ITEMS = 4_000  # phrases that clusters are compared by
RELATION, CALCULATION, WORDS = 0.5, 0.3, 1.0  # weights of what is compared
_COMPARED, _NAMED = 3, 5  # words of the longest phrase, to compare clusters and to name themes
_USUAL = 0.4  # the share of a theme's responses that have what it is named by
# Words of more than two letters that hold a sentence together and say nothing of its subject.
_FUNCTION_WORDS = frozenset((
    "about", "above", "across", "after", "again", "against", "all", "almost", "along", "already", "also", "although",
    "always", "among", "and", "another", "any", "are", "around", "because", "been", "before", "behind", "being",
    "below", "beside", "besides", "between", "beyond", "both", "but", "can", "cannot", "could", "did", "does", "down",
    "during", "each", "eight", "either", "else", "enough", "even", "ever", "every", "except", "few", "first", "five",
    "for", "four", "from", "further", "get", "gets", "got", "had", "has", "have", "having", "hence", "her", "here",
    "hers", "him", "his", "how", "however", "indeed", "into", "its", "itself", "last", "least", "less", "let", "many",
    "may", "might", "more", "moreover", "most", "much", "must", "neither", "never", "next", "nine", "nor", "not", "now",
    "off", "often", "once", "one", "only", "onto", "other", "others", "otherwise", "our", "ours", "out", "over", "own",
    "per", "perhaps", "put", "rather", "same", "see", "seven", "several", "shall", "she", "should", "since", "six",
    "some", "still", "such", "ten", "than", "that", "the", "their", "theirs", "them", "then", "there", "therefore",
    "these", "they", "this", "those", "though", "three", "through", "throughout", "thus", "together", "too", "toward",
    "towards", "two", "under", "unless", "until", "upon", "very", "via", "was", "well", "were", "what", "when", "where",
    "whereas", "whether", "which", "while", "who", "whom", "whose", "why", "will", "with", "within", "without", "would",
    "yet", "you", "your", "yours",
))  # fmt: skip


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
    """Return unit vectors (k, v) of how often each cluster has each item, weighted by how rare the item is.

    With n items of a kind, a cluster has the term frequency 1 + ln(n), and the weight is smoothed: as if one more
    cluster had every item. Items of fewer than ``fewest`` clusters are left out, and so are all but the `MOST_ITEMS`
    that are most frequent. A cluster without any item has a zero row; v is at least 1.
    """
    counts = [Counter(some) for some in items]
    having = Counter(item for some in counts for item in some)
    everywhere = Counter(item for some in items for item in some)
    known = sorted(item for item, clusters in having.items() if clusters >= fewest)
    frequent = sorted(known, key=everywhere.__getitem__, reverse=True)[:MOST_ITEMS]  # stable: in order if as frequent
    column = {item: number for number, item in enumerate(sorted(frequent))}
    vectors = np.zeros((len(items), max(len(column), 1)))
    for row, some in zip(vectors, counts):
        for item, number in some.items():
            if item in column:
                rarity = 1 + math.log((1 + len(items)) / (1 + having[item]))
                row[column[item]] = (1 + math.log(number)) * rarity
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: NDArray[np.float32] = (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return unit


def joined(vectors: NDArray[np.float32], most: int) -> NDArray[np.int64]:
    """Return the group (k,) of each of the unit vectors (k, v), by average linkage; k is at least 1.

    Vectors nearer than `NEAR` are joined, and then others until there are at most ``most`` groups. Groups are numbered
    in the order of their first vectors.
    """
    distances = np.clip(1 - vectors @ vectors.T, 0, None).astype(np.float64)
    pairs, heights = _average_linkage(distances)
    joins = max(int((heights < NEAR).sum()), len(vectors) - most)
    limit = np.sort(heights)[joins - 1] if joins > 0 else -1.0
    group = np.arange(len(vectors))
    for pair in pairs[heights <= limit]:
        first, other = group[pair]
        group[group == max(first, other)] = min(first, other)
    groups: NDArray[np.int64] = np.unique(group, return_inverse=True)[1].astype(np.int64)
    return groups


def _average_linkage(distances: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the pairs (k - 1, 2) that average linkage joins, and their distances (k - 1,); overwrites ``distances``.

    Each of a pair stands for its group at that time. Chains of nearest neighbors (Murtagh 1983) find the pairs in the
    time of k ** 2 distances, but not from the nearest on. Of equally near ones the first is joined.
    """
    count = len(distances)
    np.fill_diagonal(distances, np.inf)
    sizes = np.ones(count)
    pairs, heights, chain = np.empty((count - 1, 2), np.int64), np.empty(count - 1), list[int]()
    for step in range(count - 1):
        if not chain:
            chain.append(int(np.flatnonzero(sizes)[0]))
        while True:
            row = distances[chain[-1]]
            nearest = int(row.argmin())
            if len(chain) > 1 and row[chain[-2]] <= row[nearest]:
                break
            chain.append(nearest)
        gone, kept = pairs[step] = sorted((chain.pop(), chain.pop()))
        heights[step], total = distances[gone, kept], sizes[gone] + sizes[kept]
        means = (sizes[gone] * distances[gone] + sizes[kept] * distances[kept]) / total
        distances[kept] = distances[:, kept] = means
        distances[gone] = distances[:, gone] = np.inf
        distances[kept, kept] = np.inf
        sizes[gone], sizes[kept] = 0, total
    return pairs, heights


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
        relation = _usual([departure.relation for departure in some], 2)
        calculation = _usual([departure.calculation for departure in some])
        telling = _telling(counts, everywhere, len(some), sum(map(len, members)) - len(some))
        known = "" if relation == NO_CALCULATION else relation or (calculation and "calculates")
        plain = ": ".join(part for part in (known, calculation) if part)
        quoted = f"“{telling}”" if telling else ""
        longer = ", ".join(part for part in (plain, quoted) if part)
        wanted = (plain, longer) if calculation else (longer, plain)
        unnamed = f"{plain or 'other errors'} ({len(names) + 1})"
        names.append(next((name for name in wanted if name and name not in names), unnamed))
    return names


def _usual(values: Sequence[str], most: int = 1) -> str:
    """The most frequent value, or up to ``most`` of them, if enough responses have one of these."""
    frequent, having = [], 0
    for value, number in Counter(values).most_common(most):
        frequent.append(value)
        having += number
        if having >= _USUAL * len(values):
            return " or ".join(frequent)
    return ""


def _telling(counts: Counter[str], everywhere: Counter[str], own: int, others: int) -> str:
    """The phrase that is usual, and that most others have not, the more words of language the better; or none."""
    told = {
        phrase: ((n / own - (everywhere[phrase] - n) / max(others, 1)) * weight**0.5, phrase)
        for phrase, n in counts.items()
        if n >= _USUAL * own and (weight := _language(phrase))
    }
    return max(told, key=told.__getitem__, default="")


def _language(phrase: str) -> float:
    """The number of a phrase's words of language that mean something, less half of the others."""
    words = phrase.split()
    known = sum(
        len(word) > 2 and word.isalpha() and word not in ROLES and word not in _FUNCTION_WORDS for word in words
    )
    return max(known - 0.5 * (len(words) - known), 0)
