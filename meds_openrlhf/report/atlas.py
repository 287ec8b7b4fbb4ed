"""The atlas of a run's recurring errors, as data for the page: tables of prompts and clusters, and their details.

The tables are small and cover everything that is listed. Details (examples, heatmaps) come in portions, which the page
unpacks on demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.data.prompt_texts import questions
from meds_openrlhf.memory.clustering import NOISE
from meds_openrlhf.memory.stored import open_memory
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.report.clusters import Clusters, Visits, find_clusters, right_answers, visits_of
from meds_openrlhf.report.error_rows import ErrorRows, rows_of_log, rows_of_memory
from meds_openrlhf.report.examples import candidates, choose
from meds_openrlhf.report.heatmap import heatmap_of
from meds_openrlhf.report.limits import Limits
from meds_openrlhf.report.rollout_rows import NONE, Response, RolloutRows, read_responses, read_rollout_rows
from meds_openrlhf.report.settings import config_of

PROMPTS_IN_PORTION = 64


@dataclass(frozen=True)
class Atlas:
    """All data about a run's errors. ``listed`` are clusters, the biggest first; ``shown`` are their prompts."""

    paths: RunPaths
    rows: ErrorRows
    rollouts: RolloutRows
    clusters: Clusters
    visits: Visits
    in_log: NDArray[np.int64]  # (n,): each row's index in the log, or NONE
    listed: NDArray[np.int64]  # cluster indices
    shown: NDArray[np.int64]  # prompt indices, in the order of the prompts' biggest clusters
    texts: dict[str, str]
    limits: Limits

    def responses(self, places: Iterable[int]) -> dict[int, Response]:
        """Read the responses of the rollouts at ``places`` of the log, by place; those without a text are left out."""
        return read_responses(self.paths, self.rollouts, places)


def read_atlas(paths: RunPaths, limits: Limits | None = None) -> Atlas | None:
    """Read the atlas of the run in ``paths``; None if the run has neither remembered nor logged a wrong rollout yet.

    Raises ConfigError or MemoryCorruptionError if a file cannot be read.
    """
    config, rollouts, limits = config_of(paths), read_rollout_rows(paths), limits or Limits()
    rows = rows_of_memory(open_memory(paths.root), config) if paths.memory.format.exists() else rows_of_log(rollouts)
    if not len(rows):
        return None
    visits = visits_of(rows, rollouts)
    clusters, rows = find_clusters(rows, visits)
    order = np.argsort(-clusters.size, kind="stable")
    shown = _first_seen(clusters.prompt[order])
    rest = np.setdiff1d(np.arange(len(rows.prompts)), shown)  # prompts without clusters
    shown = np.concatenate([shown, rest])[: limits.prompts]
    shown = shown[: max(int((np.cumsum(np.diff(rows.offsets)[shown]) <= limits.rows).sum()), 1)]
    listed = order[np.isin(clusters.prompt[order], shown)][: limits.listed_clusters]
    texts = questions([rows.prompts[number] for number in shown.tolist()], rollouts.prompt_texts, config)
    in_log = rollouts.find(rows.step, rows.sample)
    return Atlas(paths, rows, rollouts, clusters, visits, in_log, listed, shown, texts, limits)


def tables_of(atlas: Atlas) -> dict[str, Any]:
    """The tables that the page lists, sorts and searches."""
    rows, clusters, listed = atlas.rows, atlas.clusters, atlas.listed
    place = np.full(len(rows.prompts), NONE, np.int64)
    place[atlas.shown] = np.arange(len(atlas.shown))
    return {
        "basis": rows.basis,
        "totals": {
            "prompts": len(rows.prompts), "rows": len(rows), "clusters": len(clusters),
            "noise": int((rows.label == NOISE).sum()),
            "rollouts": len(atlas.rollouts), "texts": int(atlas.rollouts.has_text.sum()),
            "before": int((rows.step <= 0).sum()),
        },
        "heatmaps": rows.logits is not None,
        "compared": [] if rows.compared is None else np.flatnonzero(rows.compared).tolist(),
        "clusters": {
            "prompt": place[clusters.prompt[listed]].tolist(),
            "label": clusters.label[listed].tolist(),
            "right": clusters.right[listed].astype(int).tolist(),
            "size": clusters.size[listed].tolist(),
            "share": clusters.share[listed].round(4).tolist(),
            "first": clusters.first[listed].tolist(),
            "last": clusters.last[listed].tolist(),
            "since": clusters.visits_since[listed].tolist(),
        },
        "prompts": _prompt_tables(atlas),
    }  # fmt: skip


def portions(atlas: Atlas) -> Iterator[dict[int, dict[str, Any]]]:
    """The details of the biggest clusters, some prompts at a time, keyed by index in `Atlas.shown`."""
    clusters = atlas.clusters
    detailed = atlas.listed[: atlas.limits.detailed_clusters]
    wanted: dict[int, list[int]] = {}
    for cluster in detailed.tolist():
        wanted.setdefault(int(clusters.prompt[cluster]), []).append(cluster)
    sources = {cluster: _sources(atlas, cluster) for cluster in detailed.tolist()}
    right = _right_places(atlas, list(wanted))
    places = {place for chosen in sources.values() for place in chosen} | set(right.values())
    responses = atlas.responses(places)  # read once: each file has rows of many prompts
    chooser = _Chooser(atlas, sources, right, responses)
    place_of = {number: place for place, number in enumerate(atlas.shown.tolist())}
    prompts = list(wanted)
    for start in range(0, len(prompts), PROMPTS_IN_PORTION):
        some = prompts[start : start + PROMPTS_IN_PORTION]
        yield {place_of[prompt]: chooser.details(prompt, wanted[prompt]) for prompt in some}


@dataclass(frozen=True)
class _Chooser:
    """Candidates for examples by cluster, candidates for right responses by prompt, and their responses."""

    atlas: Atlas
    sources: dict[int, list[int]]
    right: dict[int, int]
    responses: dict[int, Response]

    def details(self, prompt: int, clusters: list[int]) -> dict[str, Any]:
        """Examples and heatmaps of some clusters of a prompt, and a right response to the prompt."""
        right = self._examples([self.right[prompt]], 1) if prompt in self.right else []
        stored = self.atlas.rows.logits(prompt) if self.atlas.rows.logits else None
        entries = {}
        for cluster in clusters:
            entry: dict[str, Any] = {"examples": self._examples(self.sources[cluster], self.atlas.limits.examples)}
            if stored is not None:
                member = _is_member(self.atlas, cluster)
                entry["heatmap"] = heatmap_of(stored, member, self.atlas.limits.heatmap_rows).as_json()
            entries[int(self.atlas.clusters.label[cluster])] = entry
        return {"right": right, "clusters": entries}

    def _examples(self, places: list[int], most: int) -> list[dict[str, Any]]:
        rollouts = self.atlas.rollouts
        chosen = choose(places, self.responses, most, self.atlas.limits.example_characters)
        return [
            {"s": int(rollouts.step[row.place]), "i": int(rollouts.sample[row.place]), "p": row.parts} for row in chosen
        ]


def _prompt_tables(atlas: Atlas) -> dict[str, list[Any]]:
    """Columns over the shown prompts. ``steps`` are run-length encoded (`_delta`); ``seen`` are the visits."""
    rows, rollouts, limits = atlas.rows, atlas.rollouts, atlas.limits
    answer = np.where(atlas.in_log == NONE, NONE, rollouts.answer[atlas.in_log]) if len(rollouts) else atlas.in_log
    right = right_answers(rows, rollouts)
    visit_ends = np.searchsorted(atlas.visits.prompt, np.arange(len(rows.prompts) + 1))
    table: dict[str, list[Any]] = {
        name: [] for name in ("key", "text", "right", "steps", "labels", "first_right", "answer", "answers", "seen")
    }
    for number in atlas.shown.tolist():
        of_prompt = rows.of(number)
        visits = slice(visit_ends[number], visit_ends[number + 1])
        used, numbered = np.unique(answer[of_prompt], return_inverse=True)
        known = [rollouts.answers[code] for code in used.tolist() if code != NONE]
        table["key"].append(rows.prompts[number])
        table["text"].append(_cut(atlas.texts.get(rows.prompts[number], ""), limits.prompt_characters))
        table["right"].append(
            None if right[number] == NONE else _cut(rollouts.answers[right[number]], limits.answer_characters)
        )
        table["steps"].append(_delta(rows.step[of_prompt]))
        table["labels"].append(rows.label[of_prompt].tolist())
        table["first_right"].append(int((~rows.right[of_prompt]).sum()))
        table["answer"].append((numbered - (len(used) - len(known))).tolist())  # NONE sorts first
        table["answers"].append([_cut(text, limits.answer_characters) for text in known])
        table["seen"].append(
            [c[visits].tolist() for c in (atlas.visits.step, atlas.visits.rollouts, atlas.visits.correct)]
        )
    return table


def _is_member(atlas: Atlas, cluster: int) -> NDArray[np.bool_]:
    """A mask (n,) over the rows of the cluster's prompt: which of them are in the cluster."""
    of_prompt = atlas.rows.of(atlas.clusters.prompt[cluster])
    member: NDArray[np.bool_] = atlas.rows.label[of_prompt] == atlas.clusters.label[cluster]
    return member


def _sources(atlas: Atlas, cluster: int) -> list[int]:
    """Indices of logged rollouts that can serve as a cluster's examples."""
    start = atlas.rows.offsets[atlas.clusters.prompt[cluster]]
    places = atlas.in_log[start + np.flatnonzero(_is_member(atlas, cluster))]
    return candidates(places, atlas.rollouts, atlas.limits.examples)


def _right_places(atlas: Atlas, prompts: list[int]) -> dict[int, int]:
    """The newest right rollout with a text of each of ``prompts``, if the log has any."""
    rollouts = atlas.rollouts
    numbers = {key: number for number, key in enumerate(rollouts.prompts)}
    codes = {numbers[atlas.rows.prompts[prompt]]: prompt for prompt in prompts if atlas.rows.prompts[prompt] in numbers}
    fits = np.flatnonzero(rollouts.correct & rollouts.has_text)
    fits = fits[np.isin(rollouts.prompt[fits], list(codes))]
    return {codes[code]: place for code, place in zip(rollouts.prompt[fits].tolist(), fits.tolist())}


def _first_seen(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The distinct elements of ``values`` (n,), in the order of first occurrence."""
    distinct, first = np.unique(values, return_index=True)
    ordered: NDArray[np.int64] = distinct[np.argsort(first)]
    return ordered


def _delta(steps: NDArray[np.int64]) -> list[list[int]]:
    """Run-length encode the rows' steps (n,): the list of steps and the list of row counts."""
    bounds = np.flatnonzero(np.r_[True, np.diff(steps) != 0])
    return [steps[bounds].tolist(), np.diff(np.r_[bounds, len(steps)]).tolist()]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
