"""The atlas of a run's recurring errors, as data for the page: tables of all prompts and clusters that are listed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from meds_openrlhf.data.prompt_texts import questions
from meds_openrlhf.memory.sets import NOISE
from meds_openrlhf.memory.stored import has_memory, open_memory
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.report.clusters import find_clusters, right_answers, visits_of
from meds_openrlhf.rollouts.clusters import ClusteredRows, rows_of_log, rows_of_memory
from meds_openrlhf.rollouts.run import NONE, RolloutLog, read_log
from meds_openrlhf.rollouts.texts import ResponseText
from meds_openrlhf.runs.settings import config_of
from meds_openrlhf.terminal import cut


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the whole page, which says what was left out; several runs share the limits of the first group."""

    prompts: int = 5_000  # with the biggest clusters
    rows: int = 2_000_000  # of these prompts
    detailed_clusters: int = 3_000  # the biggest clusters, with examples and a heatmap
    steps: int = 2_000  # points of a curve; more steps are averaged

    examples: int = 4  # per cluster
    example_characters: int = 3_000
    prompt_characters: int = 3_000
    answer_characters: int = 200
    heatmap_rows: int = 8  # members, and as many neighbors

    def shared_by(self, runs: int) -> Limits:
        """The limits of each of ``runs`` runs."""
        shared = ("prompts", "rows", "detailed_clusters")
        parts = {name: max(getattr(self, name) // runs, 1) for name in shared}
        return replace(self, **parts, steps=max(self.steps // runs, 200))


@dataclass(frozen=True)
class Atlas:
    """All data about a run's errors. ``listed`` are clusters, the biggest first; ``shown`` are their prompts."""

    rows: ClusteredRows
    rollouts: RolloutLog
    clusters: pd.DataFrame  # see `find_clusters`
    visits: pd.DataFrame  # see `visits_of`
    in_log: NDArray[np.int64]  # (n,): each row's index in the log, or NONE
    listed: NDArray[np.int64]  # cluster indices
    shown: NDArray[np.int64]  # prompt indices, in the order of the prompts' biggest clusters
    texts: dict[str, str]
    limits: Limits

    def responses(self, places: Iterable[int]) -> dict[int, ResponseText]:
        """Read the responses of the rollouts at ``places`` of the log, by place; those without a text are left out."""
        return self.rollouts.responses(places)

    @property
    def cluster(self) -> NDArray[np.int64]:
        """The index (n,) of each row's cluster, or NONE."""
        first = np.searchsorted(self.clusters["prompt"], self.rows.prompt)  # of the prompt's clusters
        return np.where(self.rows.label >= 0, first + self.rows.label, NONE)

    def is_member(self, cluster: int) -> NDArray[np.bool_]:
        """A mask (n,) over the rows of the cluster's prompt: which of them are in the cluster."""
        of_prompt = self.rows.of(self.clusters["prompt"][cluster])
        member: NDArray[np.bool_] = self.rows.label[of_prompt] == self.clusters["number"][cluster]
        return member

    def members(self, cluster: int) -> NDArray[np.int64]:
        """The cluster's rollouts as places in the log, except those that are not in it."""
        places = self.in_log[self.rows.of(self.clusters["prompt"][cluster])][self.is_member(cluster)]
        known: NDArray[np.int64] = places[places != NONE]
        return known


def read_atlas(paths: RunPaths, limits: Limits | None = None) -> Atlas | None:
    """Read the atlas of the run in ``paths``; None if the run has neither remembered nor logged a wrong rollout yet.

    Raises ConfigError or MemoryCorruptionError if a file cannot be read.
    """
    config, rollouts, limits = config_of(paths), read_log(paths), limits or Limits()
    rows = rows_of_memory(open_memory(paths.root), config) if has_memory(paths) else rows_of_log(rollouts)
    if not len(rows):
        return None
    visits = visits_of(rows, rollouts)
    clusters, rows = find_clusters(rows, visits)
    by_size = clusters.sort_values("size", ascending=False, kind="stable")["prompt"]
    every = np.concatenate([by_size, np.arange(len(rows.prompts))])  # the last: prompts without clusters
    shown = pd.unique(every)[: limits.prompts]
    shown = shown[: max(int((np.cumsum(np.diff(rows.offsets)[shown]) <= limits.rows).sum()), 1)]
    listed = by_size.index[by_size.isin(shown)].to_numpy()
    texts = questions([rows.prompts[number] for number in shown.tolist()], rollouts.prompt_texts, config)
    in_log = rollouts.find(rows.step, rows.sample)
    return Atlas(rows, rollouts, clusters, visits, in_log, listed, shown, texts, limits)


def tables_of(atlas: Atlas) -> dict[str, Any]:
    """The tables that the page lists, sorts and searches."""
    rows, clusters = atlas.rows, atlas.clusters.iloc[atlas.listed]
    place = np.full(len(rows.prompts), NONE, np.int64)
    place[atlas.shown] = np.arange(len(atlas.shown))
    return {
        "basis": rows.basis,
        "totals": {
            "prompts": len(rows.prompts), "rows": len(rows), "clusters": len(atlas.clusters),
            "noise": int((rows.label == NOISE).sum()),
            "rollouts": len(atlas.rollouts), "texts": int(atlas.rollouts.has_text.sum()),
        },
        "detailed": min(len(atlas.listed), atlas.limits.detailed_clusters),
        "compared": [] if rows.compared is None else np.flatnonzero(rows.compared).tolist(),
        "clusters": {
            "prompt": place[clusters["prompt"]].tolist(),
            "label": clusters["number"].tolist(),
            "share": clusters["share"].to_numpy().round(4).tolist(),
            **{name: clusters[name].tolist() for name in ("right", "size", "first", "last", "since")},
        },
        "prompts": _prompt_tables(atlas),
    }  # fmt: skip


def _prompt_tables(atlas: Atlas) -> dict[str, list[Any]]:
    """Columns over the shown prompts. ``seen`` are the visits, of which ``visit`` has each row's index."""
    rows, log, visits, most = atlas.rows, atlas.rollouts, atlas.visits, atlas.limits.answer_characters
    answer = np.where(atlas.in_log == NONE, NONE, log.answer[atlas.in_log]) if len(log) else atlas.in_log
    right = right_answers(rows, log)
    visit_ends = np.searchsorted(visits["prompt"], np.arange(len(rows.prompts) + 1))
    seen_columns = [visits[name].to_numpy() for name in ("step", "rollouts", "correct")]
    entries = []
    for number in atlas.shown.tolist():
        of_prompt, key = rows.of(number), rows.prompts[number]
        seen = slice(visit_ends[number], visit_ends[number + 1])
        used, numbered = np.unique(answer[of_prompt], return_inverse=True)
        known = [log.answers[code] for code in used.tolist() if code != NONE]
        truth = log.answers[right[number]] if number in right else log.truths.get(key)
        entry = {
            "key": key,
            "text": cut(atlas.texts.get(key, ""), atlas.limits.prompt_characters),
            "right": truth if truth is None else cut(truth, most),
            "visit": np.searchsorted(seen_columns[0][seen], rows.step[of_prompt]).tolist(),
            "labels": rows.label[of_prompt].tolist(),
            "first_right": int((~rows.correct[of_prompt]).sum()),
            "answer": (numbered - (len(used) - len(known))).tolist(),  # NONE sorts first
            "answers": [cut(text, most) for text in known],
            "seen": [column[seen].tolist() for column in seen_columns],
        }
        entries.append(entry)
    return {name: [entry[name] for entry in entries] for name in entries[0]}
