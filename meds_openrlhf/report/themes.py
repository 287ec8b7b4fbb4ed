"""The themes of runs' errors as data for the page: kinds of errors across prompts, their shares and their changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from meds_openrlhf.judge.settings import JudgeSettings
from meds_openrlhf.report.atlas import Atlas
from meds_openrlhf.report.clusters import numbers_in
from meds_openrlhf.report.examples import spread
from meds_openrlhf.results.intervals import DIFFERENCES, mean_intervals
from meds_openrlhf.runs.log import NONE
from meds_openrlhf.themes.departure import departure, departure_span
from meds_openrlhf.themes.grouping import NO_THEME, ClusterTexts, Themes, by_departure

TEXTS = 6  # responses that are read of a cluster, and right ones of a prompt
PERIODS = 40  # points of a curve
PART = 5  # a run's start and end are this part of its periods
EXAMPLES = 3  # of a theme
AROUND = 300  # characters before and after where an example departs

NOWHERE = np.array([], np.int64)

Grouping = Callable[[Sequence[ClusterTexts], NDArray[np.int64]], Themes]


def themes_of(atlases: Sequence[Atlas], group: Grouping = by_departure) -> dict[str, Any] | None:
    """The themes that the runs share, made of their clusters by ``group``, and for each run its data.

    None if no log has a text of a clustered response.

    A run's ``of`` is the theme of each listed cluster; ``rows`` are its wrong rollouts by theme and period, ``wrong``
    and ``all`` those of the whole run, and ``ends`` the periods' last steps. ``change`` has for each theme the
    difference of its share of the rollouts, with interval, as the mean over prompts: from the start of the run to its
    end, and for later runs from the first run to this one; empty where no prompt is in both. ``examples`` are
    responses around where they depart from the right ones.
    """
    compared = [_compared(atlas) for atlas in atlases]
    texts = [texts_of(atlas, clusters) for atlas, clusters in zip(atlases, compared)]
    sizes = [atlas.clusters["size"].to_numpy()[clusters] for atlas, clusters in zip(atlases, compared)]
    found = group(list(chain.from_iterable(texts)), np.concatenate(sizes))
    if not found.names:
        return None
    runs: list[dict[str, Any]] = []
    parts = np.split(found.theme, np.cumsum([len(clusters) for clusters in compared])[:-1])
    first: pd.DataFrame | None = None
    for atlas, clusters, of_clusters, part in zip(atlases, compared, texts, parts):
        theme = np.full(len(atlas.clusters), NO_THEME, np.int64)
        theme[clusters] = part
        run, shares = _of_run(atlas, theme, len(found.names), first)
        first = shares if first is None else first
        runs.append({**run, "examples": _examples(atlas, clusters, of_clusters, part, found.names)})
    return {"names": found.names, "runs": runs}


def grouping_of(judge: JudgeSettings | None) -> Grouping:
    """How themes are made: by words, or by a language model."""
    if judge is None:
        return by_departure
    from meds_openrlhf.themes.naming import ThemesOfModel  # imports openai, of the extra `judge`

    return ThemesOfModel(judge)


def _compared(atlas: Atlas) -> NDArray[np.int64]:
    """The clusters that themes are made of: the biggest wrong ones, as those with details."""
    wrong = ~atlas.clusters["right"].to_numpy(bool)[atlas.listed]
    compared: NDArray[np.int64] = atlas.listed[wrong][: atlas.limits.detailed_clusters]
    return compared


def texts_of(atlas: Atlas, clusters: NDArray[np.int64]) -> list[ClusterTexts]:
    """The texts that themes are made of, for each of the ``clusters`` (k,)."""
    log, rows, members = atlas.rollouts, atlas.rows, _members(atlas, clusters)
    prompts = atlas.clusters["prompt"].to_numpy()[clusters].tolist()
    right = _right_places(atlas, np.array(prompts))
    every = [*members, *right.values()]
    found = log.responses(np.concatenate(every).tolist() if every else [])

    def read(places: NDArray[np.int64]) -> list[str]:
        return [found[place].text for place in places.tolist()]

    return [
        ClusterTexts(atlas.texts.get(rows.prompts[prompt], ""), read(places), read(right.get(prompt, NOWHERE)))
        for prompt, places in zip(prompts, members)
    ]


def _members(atlas: Atlas, clusters: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The places in the log of some rollouts with a text of each of the ``clusters`` (k,)."""
    members = []
    for cluster in clusters.tolist():
        places = atlas.in_log[atlas.rows.of(atlas.clusters["prompt"][cluster])][atlas.is_member(cluster)]
        known = places[places != NONE]
        members.append(spread(known[atlas.rollouts.has_text[known]], TEXTS))
    return members


def _examples(
    atlas: Atlas, clusters: NDArray[np.int64], texts: list[ClusterTexts], theme: NDArray[np.int64], names: list[str]
) -> list[list[dict[str, Any]]]:
    """For each theme some responses of its biggest clusters, of different prompts; first those that its name fits."""
    place_of = {number: place for place, number in enumerate(atlas.shown.tolist())}
    members = _members(atlas, clusters)
    found: list[list[tuple[bool, int, dict[str, Any]]]] = [[] for _ in names]
    for number in np.flatnonzero(theme != NO_THEME).tolist():
        cluster, name = texts[number], names[theme[number]]
        prompt = place_of[int(atlas.clusters["prompt"][clusters[number]])]
        fits = [name in " ".join(departure(response, *cluster.numbers)) for response in cluster.responses]
        best = fits.index(True) if True in fits else 0
        text = cluster.responses[best]
        start, end = departure_span(text, *cluster.numbers)
        place = members[number][best]
        example = {
            "prompt": prompt,
            "label": int(atlas.clusters["number"][clusters[number]]),
            "s": int(atlas.rollouts.step[place]),
            "i": int(atlas.rollouts.sample[place]),
            "p": [_tail(text[:start]), text[start:end], _head(text[end:])],
        }
        found[theme[number]].append((not fits[best], prompt, example))
    chosen = []
    for of_theme in found:
        by_prompt: dict[int, dict[str, Any]] = {}
        for _, prompt, example in sorted(of_theme, key=lambda one: one[0]):  # stable: the biggest first
            by_prompt.setdefault(prompt, example)
        chosen.append(list(by_prompt.values())[:EXAMPLES])
    return chosen


def _head(text: str) -> str:
    return text if len(text) <= AROUND else f"{text[:AROUND]}…"


def _tail(text: str) -> str:
    return text if len(text) <= AROUND else f"…{text[-AROUND:]}"


def _right_places(atlas: Atlas, prompts: NDArray[np.int64]) -> Mapping[int, NDArray[np.int64]]:
    """Some right rollouts with a text of each of ``prompts``, by prompt."""
    places = np.flatnonzero(atlas.rollouts.correct & atlas.rollouts.has_text)
    right = pd.DataFrame({"prompt": numbers_in(atlas.rows, atlas.rollouts)[places], "place": places})
    right = right[right["prompt"].isin(prompts)]
    return {int(prompt): group.to_numpy()[-TEXTS:] for prompt, group in right.groupby("prompt")["place"]}


def _of_run(
    atlas: Atlas, theme: NDArray[np.int64], themes: int, first: pd.DataFrame | None
) -> tuple[dict[str, Any], pd.DataFrame]:
    """The data of a run, given the theme of each of its clusters, and its shares by prompt."""
    rows, log = atlas.rows, atlas.rollouts
    wrong = pd.DataFrame({"prompt": rows.prompt, "number": rows.label, "step": rows.step, "place": atlas.in_log})
    wrong = wrong[~rows.right].reset_index(drop=True)
    numbered = atlas.clusters[["prompt", "number"]].assign(theme=theme)
    wrong["theme"] = wrong.merge(numbered, how="left", on=["prompt", "number"])["theme"].fillna(NO_THEME).astype(int)
    steps = np.unique(np.concatenate([wrong["step"], log.step]))
    ends = np.array([part[-1] for part in np.array_split(steps, min(PERIODS, len(steps)))])
    themed = wrong[wrong["theme"] != NO_THEME]
    counts = np.zeros((themes, len(ends)), np.int64)
    np.add.at(counts, (themed["theme"], np.searchsorted(ends, themed["step"])), 1)
    in_log = themed[themed["place"] != NONE]
    penalized = in_log.assign(penalty=log.penalty[in_log["place"]]).query("penalty > 0")
    part = max(len(ends) // PART, 1)
    early, late = _between(steps[0], ends[part - 1]), _between(ends[-part - 1] + 1 if len(ends) > part else 0, ends[-1])
    logged = pd.DataFrame({"prompt": numbers_in(rows, log), "step": log.step})
    shares = _shares(atlas, themed, logged, themes)
    if first is None:
        change = _change(
            _shares(atlas, early(themed), early(logged), themes), _shares(atlas, late(themed), late(logged), themes)
        )
    else:
        change = _change(first, shares)
    data = {
        "of": theme[atlas.listed].tolist(),
        "ends": ends.tolist(),
        "rows": counts.tolist(),
        "wrong": np.bincount(np.searchsorted(ends, wrong["step"]), minlength=len(ends)).tolist(),
        "all": np.bincount(np.searchsorted(ends, log.step), minlength=len(ends)).tolist(),
        "prompts": np.bincount(themed.drop_duplicates(["theme", "prompt"])["theme"], minlength=themes).tolist(),
        "penalized": np.bincount(penalized["theme"], minlength=themes).tolist(),
        "penalty": np.bincount(penalized["theme"], penalized["penalty"], themes).round(3).tolist(),
        "change": change,
    }
    return data, shares


def _between(first: int, last: int) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: frame[frame["step"].between(first, last)]


def _shares(atlas: Atlas, themed: pd.DataFrame, logged: pd.DataFrame, themes: int) -> pd.DataFrame:
    """The share of each theme in the logged rollouts of each prompt: a row per prompt, by key, a column per theme."""
    rollouts = logged[logged["prompt"] != NONE]["prompt"].value_counts().sort_index()
    counts = pd.crosstab(themed["prompt"], themed["theme"]).reindex(rollouts.index, columns=range(themes), fill_value=0)
    shares = counts.div(rollouts, axis=0)
    shares.index = pd.Index([atlas.rows.prompts[number] for number in shares.index])
    return shares


def _change(before: pd.DataFrame, after: pd.DataFrame) -> list[list[float]]:
    """For each theme the mean difference over the prompts of both, and its interval."""
    prompts = before.index.intersection(after.index)
    if prompts.empty:
        return []
    difference = (after.loc[prompts] - before.loc[prompts]).clip(-1, 1).to_numpy(np.float64)
    interval = mean_intervals([difference], DIFFERENCES, resamples=2_000)
    changes: list[list[float]] = np.column_stack([difference.mean(axis=0), interval]).round(4).tolist()
    return changes
