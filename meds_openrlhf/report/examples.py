"""Example responses of a cluster: distinct members, if possible, from the whole run."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.runs.log import NONE, Response, RolloutLog

TEXT, ANSWER, LEFT_OUT = 0, 1, 2
_AROUND_ANSWER = 0.7  # share of a shortened response around its answer; the rest is its beginning


def candidates(places: NDArray[np.int64], rollouts: RolloutLog, wanted: int) -> list[int]:
    """Up to twice ``wanted`` of the rollouts ``places`` (m,) that have a text, the best first.

    The first has the most frequent answer of all ``places``. The next alternate between rollouts spread over the steps
    and rollouts with distinct answers, frequent answers first. The rest are spares for duplicate texts.
    """
    known = places[places != NONE]
    with_text = known[rollouts.has_text[known]]
    if not len(with_text):
        return []
    one_of_each = _by_frequency(with_text, rollouts.answer[with_text], rollouts.answer[known])
    coarse, fine = (spread(with_text, number).tolist() for number in (wanted, 2 * wanted))
    in_turn = zip_longest(coarse[:1] + coarse[:0:-1], one_of_each[:wanted])
    others = [place for pair in in_turn for place in pair if place is not None]
    return list(dict.fromkeys([one_of_each[0], *others, *fine]))[: 2 * wanted]


def choose(places: list[int], responses: dict[int, Response], most: int) -> list[int]:
    """Choose up to ``most`` of ``places`` with distinct texts: the first, then the others in the order of steps."""
    chosen: dict[str, int] = {}
    for place in places:
        if place in responses and len(chosen) < most:
            chosen.setdefault(responses[place].text, place)
    found = list(chosen.values())
    return found[:1] + sorted(found[1:])


def parts_of(response: Response, characters: int) -> list[tuple[int, str | int]]:
    """The response as texts, the answer, and numbers of characters left out, each with its kind.

    A long response is reduced to its beginning and the part at the answer.
    """
    text = response.text
    begin, end = _answer_span(response)
    kept = _kept(len(text), end, characters)
    parts: list[tuple[int, str | int]] = []
    at = 0
    for start, stop in [*kept, (len(text), len(text))]:
        if start > at:
            parts.append((LEFT_OUT, start - at))
        for kind, low, high in ((TEXT, start, begin), (ANSWER, begin, end), (TEXT, end, stop)):
            low, high = max(low, start), min(high, stop)
            if low < high:
                parts.append((kind, text[low:high]))
        at = stop
    return parts


def _answer_span(response: Response) -> tuple[int, int]:
    """The answer's start and end in the text; an empty span at the text's end if it is not found."""
    text, answer, start = response.text, response.answer, response.answer_start
    if not answer:
        return len(text), len(text)
    if start is None or not text.startswith(answer, start):
        start = text.rfind(answer)
    return (start, start + len(answer)) if start >= 0 else (len(text), len(text))


def _kept(length: int, end: int, characters: int) -> list[tuple[int, int]]:
    """The spans of a text that are shown."""
    if length <= characters:
        return [(0, length)]
    around = int(characters * _AROUND_ANSWER)
    stop = min(end + around // 4, length)
    start = max(stop - around, 0)
    head = characters - around
    return [(0, stop)] if start <= head else [(0, head), (start, stop)]


def _by_frequency(places: NDArray[np.int64], answer: NDArray[np.int64], every_answer: NDArray[np.int64]) -> list[int]:
    """The first of ``places`` (m,) for each ``answer`` (m,), sorted by the answer's frequency in ``every_answer`` (k,).

    Ties are sorted by first occurrence; rollouts without an answer come last.
    """
    codes, first, counts = np.unique(every_answer, return_index=True, return_counts=True)
    rank = {int(code): (code == NONE, -n, at) for code, n, at in zip(codes, counts, first)}
    found, first = np.unique(answer, return_index=True)
    return [int(places[at]) for _, at in sorted(zip(found.tolist(), first), key=lambda pair: rank[pair[0]])]


def spread(values: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Up to ``most`` of ``values`` (n,), evenly spaced, including the first and the last."""
    numbers = np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(np.int64)
    chosen: NDArray[np.int64] = values[np.unique(numbers)]
    return chosen
