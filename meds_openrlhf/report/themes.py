"""The themes of runs' errors as data for the page: kinds of errors across prompts, their shares and their changes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from meds_openrlhf.judge.settings import JudgeSettings
from meds_openrlhf.report.atlas import Atlas
from meds_openrlhf.report.clusters import right_places
from meds_openrlhf.report.details import parts_of, spread
from meds_openrlhf.rollouts.run import NONE, Response
from meds_openrlhf.stats.estimates import DIFFERENCES, mean_intervals
from meds_openrlhf.themes.departure import departure
from meds_openrlhf.themes.grouping import NO_THEME, ClusterTexts, Themes, by_departure

TEXTS = 6  # responses that are read of a cluster, and right ones of a prompt
PERIODS = 40  # points of a curve
PART = 5  # a run's start and end are this part of its periods
EXAMPLES, EXAMPLE_CHARACTERS = 3, 700  # of a theme


def themes_of(atlases: Sequence[Atlas], judge: JudgeSettings | None = None) -> dict[str, Any] | None:
    """The themes that the runs share, made of their clusters by words or by a ``judge``, and for each run its data.

    None if no log has a text of a clustered response. Each run needs a log.

    A run's ``of`` is the theme of each listed cluster; ``rows`` are its wrong rollouts by theme and period, ``wrong``
    and ``all`` those of the whole run, and ``ends`` the periods' last steps. ``change`` has for each theme the
    difference of its share of the rollouts, with interval, as the mean over prompts: from the start of the run to its
    end, and for later runs from the first run to this one; empty where no prompt is in both. ``examples`` are
    responses around where they depart from the right ones.
    """
    compared = [_compared(atlas) for atlas in atlases]
    read = [texts_of(atlas, clusters) for atlas, clusters in zip(atlases, compared)]
    sizes = [atlas.clusters["size"].to_numpy()[clusters] for atlas, clusters in zip(atlases, compared)]
    found = _grouped([*chain.from_iterable(texts for _, texts in read)], np.concatenate(sizes), judge)
    if not found.names:
        return None
    parts = np.split(found.theme, np.cumsum([len(clusters) for clusters in compared])[:-1])
    runs: list[dict[str, Any]] = []
    first: pd.DataFrame | None = None
    for atlas, clusters, part, (members, texts) in zip(atlases, compared, parts, read):
        theme = np.full(len(atlas.clusters), NO_THEME, np.int64)
        theme[clusters] = part
        logged, ends = _logged(atlas, theme)
        near_end = (logged["period"] < _part(ends), logged["period"] >= len(ends) - _part(ends))
        before, after = (first, logged) if first is not None else (logged[near] for near in near_end)
        first = logged if first is None else first
        runs.append(
            {
                "of": theme[atlas.listed].tolist(),
                "ends": ends.tolist(),
                **_counts(logged, len(ends), len(found.names)),
                "change": _change(before, after, len(found.names)),
                "examples": _examples(atlas, clusters, members, texts, part, found.names),
            }
        )
    return {"names": found.names, "runs": runs}


def _grouped(clusters: list[ClusterTexts], sizes: NDArray[np.int64], judge: JudgeSettings | None) -> Themes:
    if judge is None:
        return by_departure(clusters, sizes)
    from meds_openrlhf.judge.client import JudgeClient  # imports openai, of the extra `judge`
    from meds_openrlhf.themes.naming import by_model

    return by_model(JudgeClient(judge), clusters, sizes)


def _compared(atlas: Atlas) -> NDArray[np.int64]:
    """The clusters that themes are made of: the biggest wrong ones, as those with details."""
    wrong = ~atlas.clusters["right"].to_numpy(bool)[atlas.listed]
    compared: NDArray[np.int64] = atlas.listed[wrong][: atlas.limits.detailed_clusters]
    return compared


def texts_of(atlas: Atlas, clusters: NDArray[np.int64]) -> tuple[list[list[int]], list[ClusterTexts]]:
    """Some members of each of the ``clusters`` (k,) as places in the log, and the texts that themes are made of."""
    log = atlas.rollouts
    members = [spread(places[log.has_text[places]], TEXTS).tolist() for places in map(atlas.members, clusters.tolist())]
    prompts = atlas.clusters["prompt"].to_numpy()[clusters].tolist()
    right = right_places(atlas.rows, log, prompts, TEXTS)
    found = atlas.responses(chain(*members, *right.values()))  # without those of steps that the run has just removed
    members = [[place for place in places if place in found] for places in members]

    def read(places: list[int]) -> list[str]:
        return [found[place].text for place in places if place in found]

    return members, [
        ClusterTexts(atlas.texts.get(atlas.rows.prompts[prompt], ""), read(places), read(right.get(prompt, [])))
        for prompt, places in zip(prompts, members)
    ]


def _logged(atlas: Atlas, theme: NDArray[np.int64]) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    """The logged rollouts, given the theme of each cluster, and the last steps of the periods."""
    log = atlas.rollouts
    of_rollouts, is_logged = np.full(len(log), NO_THEME), atlas.in_log != NONE
    of_rollouts[atlas.in_log[is_logged]] = np.append(theme, NO_THEME)[atlas.cluster[is_logged]]
    steps = np.unique(log.step)
    periods = min(PERIODS, len(steps))
    ends = steps[np.arange(1, periods + 1) * len(steps) // periods - 1]
    columns = {"theme": of_rollouts, "wrong": ~log.correct, "penalized": log.penalty > 0}
    prompts = pd.Categorical.from_codes(log.prompt, log.prompts)
    return pd.DataFrame({"prompt": prompts, "period": np.searchsorted(ends, log.step), **columns}), ends


def _part(ends: NDArray[np.int64]) -> int:
    return max(len(ends) // PART, 1)


def _counts(logged: pd.DataFrame, periods: int, themes: int) -> dict[str, Any]:
    """The numbers of rollouts: by theme and period, by period, and by theme."""
    themed = logged[logged["theme"] != NO_THEME]
    rows = pd.crosstab(themed["theme"], themed["period"])
    by_theme = themed.groupby("theme").agg(prompts=("prompt", "nunique"), penalized=("penalized", "sum"))
    return {
        "rows": rows.reindex(index=range(themes), columns=range(periods), fill_value=0).to_numpy().tolist(),
        "wrong": np.bincount(logged["period"][logged["wrong"]], minlength=periods).tolist(),
        "all": np.bincount(logged["period"], minlength=periods).tolist(),
        **by_theme.reindex(range(themes), fill_value=0).to_dict("list"),
    }


def _change(before: pd.DataFrame, after: pd.DataFrame, themes: int) -> list[list[float]]:
    """For each theme the mean difference of its shares over the prompts of both, and its interval."""
    shares = [
        pd.crosstab(logged["prompt"], logged["theme"], normalize="index").reindex(columns=range(themes), fill_value=0)
        for logged in (before, after)
    ]
    prompts = shares[0].index.astype(object).intersection(shares[1].index.astype(object))
    if prompts.empty:
        return []
    difference = (shares[1].loc[prompts] - shares[0].loc[prompts]).to_numpy(np.float64)
    interval = mean_intervals([difference], DIFFERENCES, resamples=2_000)
    changes: list[list[float]] = np.column_stack([difference.mean(axis=0), interval]).round(4).tolist()
    return changes


def _examples(
    atlas: Atlas,
    clusters: NDArray[np.int64],
    members: list[list[int]],
    texts: list[ClusterTexts],
    theme: NDArray[np.int64],
    names: list[str],
) -> list[list[dict[str, Any]]]:
    """For each theme some responses of its biggest clusters, of different prompts; first those that its name fits."""
    best = []  # of each cluster: whether the name does not fit it, the cluster, its response and the marked part
    for number in np.flatnonzero(theme != NO_THEME).tolist():
        parts = [departure(response, *texts[number].numbers) for response in texts[number].responses]
        misfits = [names[theme[number]] not in " ".join(words) for words, _ in parts]
        which = misfits.index(min(misfits))
        best.append((misfits[which], number, which, parts[which][1]))
    place_of = {number: place for place, number in enumerate(atlas.shown.tolist())}
    chosen: list[dict[int, dict[str, Any]]] = [{} for _ in names]
    for _, number, which, part in sorted(best, key=lambda entry: entry[0]):  # stable: the biggest first
        prompt, label = atlas.clusters.loc[clusters[number], ["prompt", "number"]].tolist()
        text, place, of_theme = texts[number].responses[which], members[number][which], chosen[theme[number]]
        if prompt not in of_theme and len(of_theme) < EXAMPLES:
            of_theme[prompt] = {
                "prompt": place_of[prompt],
                "label": label,
                "s": int(atlas.rollouts.step[place]),
                "i": int(atlas.rollouts.sample[place]),
                "p": parts_of(Response(text, text[part], part.start), EXAMPLE_CHARACTERS),
            }
    return [list(of_theme.values()) for of_theme in chosen]
