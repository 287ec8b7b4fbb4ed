"""Themes by a language model: it describes each cluster, merges the descriptions into themes, and names these.

The model sees texts of the run alone, as data in tags. What it says goes into a report and never into the training.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.judge.client import JudgeClient
from meds_openrlhf.judge.question import Question, ReplyLine, WordsQuestion, shortened, tagged
from meds_openrlhf.themes.grouping import MOST_THEMES, NO_THEME, ClusterTexts, Themes, by_size

_SHOWN = 3  # responses of a cluster
_CHARACTERS = 4_000  # of each text
_MERGED = 200  # descriptions that the themes are made of, those of the largest clusters
_AT_ONCE = 25  # descriptions that are assigned in a request

_DESCRIBE = (
    "A language model gave wrong responses to a problem. Describe the mistake that they have in common, in one "
    "sentence of at most 20 words and without the problem's own numbers, so that the same mistake in another problem "
    "would have the same description."
)
_MERGE = (
    f"Each line describes a mistake of a language model. Merge them into kinds of mistakes, at most {MOST_THEMES}, and "
    "name each kind in at most 8 words. Begin with the most frequent kind."
)
_ASSIGN = "Assign each numbered description of a mistake to the kind that fits it best; 0 if none fits."


def by_model(client: JudgeClient, clusters: Sequence[ClusterTexts], sizes: NDArray[np.int64]) -> Themes:
    """Group k clusters of ``sizes`` (k,) rollouts; a cluster without responses has NO_THEME.

    Raises ConfigError if the model does not answer, or if the budget is used up.
    """
    theme = np.full(len(clusters), NO_THEME, np.int64)
    with_text = [number for number, cluster in enumerate(clusters) if cluster.responses]
    replies = client.ask_all([_description(clusters[number]) for number in with_text])
    described = [(number, words[0]) for number, words in zip(with_text, replies) if words is not None]
    described.sort(key=lambda entry: -sizes[entry[0]])
    if not described:
        return Themes(theme, [])
    listed = tagged("descriptions", "\n".join(words for _, words in described[:_MERGED]))
    (reply,) = client.ask_all([WordsQuestion(_MERGE, listed, "KIND", MOST_THEMES)])
    if not reply:
        hint = "did not merge its descriptions into kinds in the form that was asked for. Name another model."
        raise ConfigError("--judge-model", client.settings.model, hint)
    names = reply
    kinds = tagged("kinds", "\n".join(f"{number}. {name}" for number, name in enumerate(names, start=1)))
    parts = [described[start : start + _AT_ONCE] for start in range(0, len(described), _AT_ONCE)]
    for part, answer in zip(parts, client.ask_all([_assignment(kinds, len(names), part) for part in parts])):
        for (number, _), kind in zip(part, answer or ()):
            theme[number] = kind - 1 if kind else NO_THEME
    theme, kept = by_size(theme, sizes)
    return Themes(theme, [names[number] for number in kept])


def _assignment(kinds: str, count: int, described: Sequence[tuple[int, str]]) -> Question:
    lines = tagged("descriptions", "\n".join(f"{place}. {words}" for place, (_, words) in enumerate(described, 1)))
    reply = tuple(ReplyLine(str(place), 0, count) for place in range(1, len(described) + 1))
    return Question(_ASSIGN, f"{kinds}\n\n{lines}", reply)


def _description(cluster: ClusterTexts) -> WordsQuestion:
    texts = [("problem", cluster.of.prompt)]
    texts += [("wrong_response", response.text) for response in cluster.responses[:_SHOWN]]
    texts += [("right_response", text) for text in cluster.of.right[:1]]
    material = "\n\n".join(tagged(tag, shortened(text, _CHARACTERS)) for tag, text in texts)
    return WordsQuestion(_DESCRIBE, material, "MISTAKE")
