"""The themes of runs' errors: kinds of errors across prompts, their shares and their changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from meds_openrlhf.report.atlas import Atlas
from meds_openrlhf.report.clusters import right_places
from meds_openrlhf.report.details import parts_of, spread
from meds_openrlhf.rollouts.run import NONE
from meds_openrlhf.rollouts.texts import ResponseText
from meds_openrlhf.stats.estimates import LEVEL, joint_intervals
from meds_openrlhf.themes.departure import Departure
from meds_openrlhf.themes.grouping import NO_THEME, ClusterTexts, PromptTexts, Themes, by_departure

TEXTS, RIGHT_TEXTS = 5, 3  # responses that are read of a cluster, and right ones of a prompt and run
PERIODS = 40  # points of a curve
PART = 5  # a run's start and end are this part of its periods
EXAMPLES, EXAMPLE_CHARACTERS = 3, 700  # of a theme
# Themes that are not made of words: clusters of no theme, and wrong rollouts that have no answer.
REST, UNANSWERED, CUT_OFF = "other errors", "no final answer", "cut off before a final answer"


@dataclass(frozen=True)
class RunThemes:
    """The themes in a run: ``of`` (c,) is each cluster's, NO_THEME if it is right.

    ``rollouts`` has a row for each logged rollout, in the order of the log: prompt, period, theme, wrong, penalized.
    ``ends`` are the periods' last steps. ``change`` has for each theme the difference of its share of the rollouts, as
    the mean over prompts, with the ends of its interval; it is empty where no prompt is compared.
    """

    atlas: Atlas
    of: NDArray[np.int64]
    rollouts: pd.DataFrame
    ends: NDArray[np.int64]
    change: list[list[float]]
    examples: list[list[dict[str, Any]]]  # responses around where they depart from the right ones

    def at(self, theme: int) -> NDArray[np.int64]:
        """The places (m,) in the log of a theme's rollouts."""
        return np.flatnonzero(self.rollouts["theme"].to_numpy() == theme)


@dataclass(frozen=True)
class RunsThemes:
    """The ``names`` of the themes that runs share, the largest first, and each run's part in them."""

    names: list[str]
    runs: list[RunThemes]

    def for_page(self) -> dict[str, Any]:
        """What the page shows: for each run the theme of each listed cluster, counts, changes and examples."""
        runs = [self._for_page(run) for run in self.runs]
        return {"names": self.names, "level": LEVEL, "most_examples": EXAMPLES, "runs": runs}

    def _for_page(self, run: RunThemes) -> dict[str, Any]:
        of_listed = {"of": run.of[run.atlas.listed].tolist(), "ends": run.ends.tolist(), "part": part_of(run.ends)}
        counts = _counts(run.rollouts, len(run.ends), len(self.names))
        return {**of_listed, **counts, "change": run.change, "examples": run.examples}


def themes_of(
    atlases: Sequence[Atlas],
    grouped: Callable[[Sequence[ClusterTexts], NDArray[np.int64]], Themes] = by_departure,
) -> RunsThemes | None:
    """The themes that the runs share, made of their clusters and their sizes by ``grouped``. Each run needs a log.

    None if nothing is in a theme: no wrong rollout is in a cluster, and each has an answer.

    Changes are from a run's start to its end if it is the only one, else from the first run to each; their intervals
    hold for all themes of the page at once.
    """
    clusters = [_compared(atlas) for atlas in atlases]
    members, texts = texts_of(atlases, clusters)
    sizes = [atlas.clusters["size"].to_numpy()[some] for atlas, some in zip(atlases, clusters)]
    found = grouped([*chain.from_iterable(texts)], np.concatenate(sizes))
    parts = np.split(found.theme, np.cumsum([len(some) for some in clusters])[:-1])
    of = [_of_clusters(atlas, some, part, len(found.names)) for atlas, some, part in zip(atlases, clusters, parts)]
    logged = [_of_rollouts(atlas, themes, len(found.names)) for atlas, themes in zip(atlases, of)]
    names, rank = _largest_first([*found.names, REST, UNANSWERED, CUT_OFF], np.concatenate(logged))
    if not names:
        return None
    tables = [_by_period(atlas, rank[themes]) for atlas, themes in zip(atlases, logged)]
    runs = []
    for place, atlas in enumerate(atlases):
        (rollouts, ends), theme = tables[place], rank[of[place]]
        compared = (tables[0][0], rollouts) if place else _start_and_end(rollouts, ends)
        change = _change(*compared, len(names), max(len(atlases) - 1, 1)) if place or len(ends) > 1 else []
        examples = _examples(atlas, clusters[place], members[place], texts[place], theme, names)
        for number, of_theme in enumerate(examples):
            of_theme += _unclustered(atlas, rollouts, number) if names[number] in (UNANSWERED, CUT_OFF) else []
        runs.append(RunThemes(atlas, theme, rollouts, ends, change, examples))
    return RunsThemes(names, runs)


def _largest_first(names: list[str], themes: NDArray[np.int64]) -> tuple[list[str], NDArray[np.int64]]:
    """The names of the themes that rollouts have (n,), the largest first, and each theme's new number.

    The new number of NO_THEME, the last, is NO_THEME.
    """
    counts = np.bincount(themes[themes != NO_THEME], minlength=len(names))
    order = [number for number in np.argsort(-counts, kind="stable").tolist() if counts[number]]
    rank = np.full(len(names) + 1, NO_THEME)
    rank[order] = np.arange(len(order))
    return [names[number] for number in order], rank


def _compared(atlas: Atlas) -> NDArray[np.int64]:
    """The clusters that themes are made of: the biggest wrong ones, as those with details."""
    wrong = ~atlas.clusters["right"].to_numpy(bool)[atlas.listed]
    compared: NDArray[np.int64] = atlas.listed[wrong][: atlas.limits.detailed_clusters]
    return compared


def texts_of(
    atlases: Sequence[Atlas], clusters: Sequence[NDArray[np.int64]]
) -> tuple[list[list[list[int]]], list[list[ClusterTexts]]]:
    """Some members of each run's ``clusters`` (k,) as places in its log, and the texts that themes are made of.

    The right responses to a prompt are those of all runs, so that equal wrong responses depart at equal words.
    """
    keys = [
        [atlas.rows.prompts[prompt] for prompt in atlas.clusters["prompt"].to_numpy()[some].tolist()]
        for atlas, some in zip(atlases, clusters)
    ]
    wanted = {*chain.from_iterable(keys)}
    right: dict[str, list[str]] = {key: [] for key in wanted}
    members, found = [], []
    for atlas, some in zip(atlases, clusters):
        log = atlas.rollouts
        places = [spread(all_[log.has_text[all_]], TEXTS).tolist() for all_ in map(atlas.members, some.tolist())]
        of_prompts = right_places(log, wanted, RIGHT_TEXTS)
        read = atlas.responses(chain(*places, *of_prompts.values()))  # but those of steps that were just removed
        members.append([[place for place in of_cluster if place in read] for of_cluster in places])
        for key, of_prompt in of_prompts.items():
            right[key] += [read[place].text for place in of_prompt if place in read]
        found.append(read)
    questions = {key: text for atlas in reversed(atlases) for key, text in atlas.texts.items()}
    truths = {key: truth for atlas in atlases for key, truth in atlas.rollouts.truths.items() if truth is not None}
    prompts = {
        key: PromptTexts(questions.get(key, ""), [*dict.fromkeys(texts)], truths.get(key))
        for key, texts in right.items()
    }
    return members, [
        [ClusterTexts(prompts[key], [read[place] for place in places]) for key, places in zip(of_run, of_clusters)]
        for of_run, of_clusters, read in zip(keys, members, found)
    ]


def _of_clusters(atlas: Atlas, compared: NDArray[np.int64], theme: NDArray[np.int64], themes: int) -> NDArray[np.int64]:
    """The theme (c,) of each cluster, given those of the ``compared`` ones; NO_THEME for clusters of right rollouts."""
    of = np.where(atlas.clusters["right"].to_numpy(bool), NO_THEME, themes)  # the first after ``themes`` is `REST`
    of[compared] = np.where(theme == NO_THEME, themes, theme)
    return of


def _of_rollouts(atlas: Atlas, of: NDArray[np.int64], themes: int) -> NDArray[np.int64]:
    """The theme (n,) of each logged rollout, given those of the clusters; `UNANSWERED` and `CUT_OFF` follow `REST`."""
    log = atlas.rollouts
    theme = np.where(log.correct | (log.answer != NONE), NO_THEME, np.where(log.truncated, themes + 2, themes + 1))
    in_cluster = (atlas.in_log != NONE) & (atlas.cluster != NONE)
    theme[atlas.in_log[in_cluster]] = of[atlas.cluster[in_cluster]]
    return theme


def _by_period(atlas: Atlas, theme: NDArray[np.int64]) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    """The logged rollouts with their themes (n,), and the last steps of the periods."""
    log = atlas.rollouts
    steps = np.unique(log.step)
    periods = min(PERIODS, len(steps))
    ends = steps[np.arange(1, periods + 1) * len(steps) // periods - 1]
    columns = {"theme": theme, "wrong": ~log.correct, "penalized": log.penalty > 0}
    prompts = pd.Categorical.from_codes(log.prompt, log.prompts)
    return pd.DataFrame({"prompt": prompts, "period": np.searchsorted(ends, log.step), **columns}), ends


def part_of(ends: NDArray[np.int64]) -> int:
    """How many of the periods are a run's start, and as many its end."""
    return max(len(ends) // PART, 1)


def _start_and_end(rollouts: pd.DataFrame, ends: NDArray[np.int64]) -> tuple[pd.DataFrame, pd.DataFrame]:
    part = part_of(ends)
    return rollouts[rollouts["period"] < part], rollouts[rollouts["period"] >= len(ends) - part]


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


def _change(before: pd.DataFrame, after: pd.DataFrame, themes: int, comparisons: int) -> list[list[float]]:
    """For each theme the mean difference of its shares over the prompts of both, and its interval."""
    shares = [
        pd.crosstab(logged["prompt"], logged["theme"], normalize="index").reindex(columns=range(themes), fill_value=0)
        for logged in (before, after)
    ]
    prompts = shares[0].index.astype(object).intersection(shares[1].index.astype(object))
    if prompts.empty:
        return []
    difference = (shares[1].loc[prompts] - shares[0].loc[prompts]).to_numpy(np.float64)
    interval = joint_intervals(difference, comparisons)
    changes: list[list[float]] = np.column_stack([difference.mean(axis=0), interval]).round(4).tolist()
    return changes


def _examples(
    atlas: Atlas,
    clusters: NDArray[np.int64],
    members: list[list[int]],
    texts: list[ClusterTexts],
    of: NDArray[np.int64],
    names: list[str],
) -> list[list[dict[str, Any]]]:
    """For each theme some responses of its biggest clusters, of different prompts; first those that its name fits."""
    best = []  # of each cluster: whether the name does not fit it, the cluster, its response and the marked part
    for number in [number for number, cluster in enumerate(texts) if cluster.responses]:
        name, departures = names[of[clusters[number]]], texts[number].departures
        misfits = [_misfit(name, departure) for departure in departures]
        which = misfits.index(min(misfits))
        best.append((misfits[which], number, which, departures[which].part))
    place_of = {number: place for place, number in enumerate(atlas.shown.tolist())}
    prompts, labels = (atlas.clusters[name].to_numpy()[clusters].tolist() for name in ("prompt", "number"))
    chosen: list[dict[int, dict[str, Any]]] = [{} for _ in names]
    for _, number, which, part in sorted(best, key=lambda entry: entry[0]):  # stable: the biggest first
        prompt, label = prompts[number], labels[number]
        text, of_theme = texts[number].responses[which].text, chosen[of[clusters[number]]]
        if prompt not in of_theme and len(of_theme) < EXAMPLES:
            marked = ResponseText(text, text[part], part.start)
            of_theme[prompt] = _example(atlas, place_of[prompt], label, members[number][which], marked)
    return [list(of_theme.values()) for of_theme in chosen]


def _misfit(name: str, departure: Departure) -> int:
    """How little of a theme's name a departure has: 0 if both its relation and its calculation."""
    return sum(part not in name for part in (departure.relation, departure.calculation or departure.relation))


def _unclustered(atlas: Atlas, rollouts: pd.DataFrame, theme: int) -> list[dict[str, Any]]:
    """Examples of a theme without clusters, of different prompts that the page has, the newest first."""
    log, place_of = (
        atlas.rollouts,
        {atlas.rows.prompts[number]: place for place, number in enumerate(atlas.shown.tolist())},
    )
    chosen: dict[int, int] = {}
    for place in np.flatnonzero((rollouts["theme"].to_numpy() == theme) & log.has_text)[::-1].tolist():
        prompt = place_of.get(log.prompts[log.prompt[place]])
        if prompt is not None:
            chosen.setdefault(prompt, place)
        if len(chosen) == EXAMPLES:
            break
    read = atlas.responses(chosen.values())
    return [_example(atlas, prompt, None, place, read[place]) for prompt, place in chosen.items() if place in read]


def _example(atlas: Atlas, prompt: int, label: int | None, place: int, response: ResponseText) -> dict[str, Any]:
    step, sample = int(atlas.rollouts.step[place]), int(atlas.rollouts.sample[place])
    return {"prompt": prompt, "label": label, "s": step, "i": sample, "p": parts_of(response, EXAMPLE_CHARACTERS)}
