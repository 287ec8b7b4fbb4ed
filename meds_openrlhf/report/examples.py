"""Example responses of a cluster: distinct members, if possible, from the whole run."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.runs.log import NONE, Response, RolloutLog

TEXT, ANSWER, LEFT_OUT = 0, 1, 2
_AROUND_ANSWER = 0.7  # share of a shortened response around its answer; the rest is its beginning


def candidates(places: NDArray[np.int64], rollouts: RolloutLog, wanted: int) -> list[int]:
    """Up to twice ``wanted`` of the rollouts ``places`` (m,) that have a text, the best first.

    The first half of those wanted are one of each of the most frequent answers of all ``places``; the others are spread
    over the steps, the last first. The rest are spares for duplicate texts.
    """
    with_text = places[rollouts.has_text[places]]
    by_answer = dict(zip(rollouts.answer[with_text][::-1].tolist(), with_text[::-1].tolist()))  # the first of each
    frequent = [answer for answer, _ in Counter(rollouts.answer[places].tolist()).most_common() if answer in by_answer]
    frequent.sort(key=lambda answer: answer == NONE)  # rollouts without an answer come last
    coarse, fine = (spread(with_text, number).tolist() for number in (wanted, 2 * wanted))
    one_of_each = [by_answer[answer] for answer in frequent[: (wanted + 1) // 2]]
    return list(dict.fromkeys([*one_of_each, *reversed(coarse), *fine]))[: 2 * wanted]


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
    text, begin = response.text, response.answer_start
    if response.answer is None or begin is None:
        begin = end = len(text)
    else:
        end = begin + len(response.answer)
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


def _kept(length: int, end: int, characters: int) -> list[tuple[int, int]]:
    """The spans of a text that are shown."""
    if length <= characters:
        return [(0, length)]
    around = int(characters * _AROUND_ANSWER)
    stop = min(end + around // 4, length)
    start = max(stop - around, 0)
    head = characters - around
    return [(0, stop)] if start <= head else [(0, head), (start, stop)]


def spread(values: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Up to ``most`` of ``values`` (n,), evenly spaced, including the first and the last."""
    numbers = np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(np.int64)
    chosen: NDArray[np.int64] = values[np.unique(numbers)]
    return chosen
