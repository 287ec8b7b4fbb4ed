"""What the page shows of a cluster on demand: distinct examples, from the whole run if possible, and a heatmap.

The heatmap has the layer logits of some of the cluster's members and of the rows nearest to it, a byte each.
"""

from __future__ import annotations

import base64
from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.report.atlas import Atlas
from meds_openrlhf.report.clusters import right_places
from meds_openrlhf.rollouts.clusters import PromptLogits
from meds_openrlhf.rollouts.run import NONE, RolloutLog
from meds_openrlhf.rollouts.texts import ResponseText

TEXT, ANSWER, LEFT_OUT = 0, 1, 2
_AROUND_ANSWER = 0.7  # share of a shortened response around its answer; the rest is its beginning
_LEVELS = 255  # of a heatmap's values


def details_of(atlas: Atlas) -> dict[int, dict[str, Any]]:
    """Examples and heatmaps of the biggest clusters and a right response, by a prompt's index in `Atlas.shown`."""
    limits = atlas.limits
    wanted: dict[int, list[int]] = {}  # clusters by prompt
    sources: dict[int, list[int]] = {}  # of a cluster's examples, as places in the log
    for cluster in atlas.listed[: limits.detailed_clusters].tolist():
        prompt = int(atlas.clusters["prompt"][cluster])
        wanted.setdefault(prompt, []).append(cluster)
        sources[cluster] = candidates(atlas.members(cluster), atlas.rollouts, limits.examples)
    right = right_places(atlas.rollouts, {atlas.rows.prompts[prompt] for prompt in wanted}, 1)
    every = chain(*right.values(), *sources.values())
    responses = atlas.responses(every)  # together, because each file has rows of many prompts
    details = {}
    for place, prompt in enumerate(atlas.shown.tolist()):
        if prompt in wanted:
            entries = {}
            logits = atlas.rows.logits and atlas.rows.logits(prompt)
            for cluster in wanted[prompt]:
                entry: dict[str, Any] = {"examples": _examples(atlas, sources[cluster], limits.examples, responses)}
                if logits is not None:
                    entry["heatmap"] = heatmap_of(logits, atlas.is_member(cluster), limits.heatmap_rows)
                entries[int(atlas.clusters["number"][cluster])] = entry
            details[place] = {
                "right": _examples(atlas, right.get(atlas.rows.prompts[prompt], []), 1, responses),
                "clusters": entries,
            }
    return details


def _examples(atlas: Atlas, places: list[int], most: int, responses: dict[int, ResponseText]) -> list[dict[str, Any]]:
    log, most_characters = atlas.rollouts, atlas.limits.example_characters
    return [
        {"s": int(log.step[place]), "i": int(log.sample[place]), "p": parts_of(responses[place], most_characters)}
        for place in choose(places, responses, most)
    ]


def candidates(places: NDArray[np.int64], rollouts: RolloutLog, wanted: int) -> list[int]:
    """Up to twice ``wanted`` of the rollouts ``places`` (m,) that have a text, the best first.

    Half are examples of the most frequent answers of all ``places``, one each; the others are spread
    over the steps, the last first. The rest are spares for duplicate texts.
    """
    with_text = places[rollouts.has_text[places]]
    by_answer = dict(zip(rollouts.answer[with_text][::-1].tolist(), with_text[::-1].tolist()))  # the first of each
    frequent = [answer for answer, _ in Counter(rollouts.answer[places].tolist()).most_common() if answer in by_answer]
    frequent.sort(key=lambda answer: answer == NONE)  # rollouts without an answer come last
    coarse, fine = (spread(with_text, number).tolist() for number in (wanted, 2 * wanted))
    one_of_each = [by_answer[answer] for answer in frequent[: (wanted + 1) // 2]]
    return list(dict.fromkeys([*one_of_each, *reversed(coarse), *fine]))[: 2 * wanted]


def choose(places: list[int], responses: dict[int, ResponseText], most: int) -> list[int]:
    """Choose up to ``most`` of ``places`` with distinct texts: the first, then the others in the order of steps."""
    chosen: dict[str, int] = {}
    for place in places:
        if place in responses and len(chosen) < most:
            chosen.setdefault(responses[place].text, place)
    found = list(chosen.values())
    return found[:1] + sorted(found[1:])


def parts_of(response: ResponseText, characters: int) -> list[tuple[int, str | int]]:
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


def heatmap_of(prompt: PromptLogits, member: NDArray[np.bool_], rows: int) -> dict[str, object]:
    """Up to ``rows`` members, spread over time, and up to ``rows`` others, nearest to the members' mean first.

    ``m`` and ``o`` are the indices of members and others among the prompt's rows; ``q`` has a byte for each of these
    rows and layers, row by row, in base64. A value is ``lo + (hi - lo) * byte / 255``, with ``lo`` and ``hi`` of its
    layer.
    """
    inside, outside = np.flatnonzero(member), np.flatnonzero(~member)
    shown = spread(inside, rows)
    center = prompt.features[inside].mean(axis=0)
    distance = ((prompt.features[outside] - center) ** 2).sum(axis=1)
    nearest = outside[np.argsort(distance, kind="stable")[:rows]]
    values = prompt.logits[np.concatenate([shown, nearest])].astype(np.float64)
    low, high = values.min(axis=0), values.max(axis=0)
    levels = np.round((values - low) / np.where(high > low, high - low, 1.0) * _LEVELS).astype(np.uint8)
    low, high = ([float(f"{value:.5g}") for value in bound] for bound in (low, high))
    coded = base64.b64encode(levels.tobytes()).decode()
    return {"m": shown.tolist(), "o": nearest.tolist(), "lo": low, "hi": high, "q": coded}
