"""Record the texts, answers and rewards of a step's rollouts, and its biggest clusters.

This takes a while for thousands of responses, so `RolloutRecorder` runs as a Ray actor: the trainer sends token ids and
continues.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.log import rollout_table, sample_texts, write_rollouts
from meds_openrlhf.rollouts.step import StepTable
from meds_openrlhf.rollouts.texts import ResponseReader, ResponseText
from meds_openrlhf.step_log import StepLog

BIGGEST = 10  # clusters
PENALTY_BINS = 20
EXAMPLE_CHARACTERS = 4000  # limit for the prompt and the response of a cluster's example


class RolloutRecorder:
    """Writes a run's ``rollouts/`` and ``clusters.jsonl``, step by step.

    ``keep`` selects the rollouts whose texts are kept: "all", "sampled", or "none" (no ``rollouts/`` and no texts).
    """

    def __init__(self, paths: RunPaths, reader: ResponseReader, keep: str) -> None:
        self._paths, self._reader, self._keep = paths, reader, keep

    def record(self, rollouts: StepTable) -> int:
        """Write a step and return its number. Raises OSError if it cannot be written."""
        table = self._table(rollouts)
        if self._keep != "none":
            write_rollouts(self._paths, sample_texts(table) if self._keep == "sampled" else table)
        StepLog(self._paths.clusters).append(rollouts.step, cluster_line(table))
        return rollouts.step

    def _table(self, rollouts: StepTable) -> pa.Table:
        """Rows of `ROLLOUT_SCHEMA`; without texts if ``keep`` is "none"."""
        texts = [""] * len(rollouts)
        responses: Sequence[ResponseText | None] = [None] * len(rollouts)
        if self._keep != "none":
            texts = rollouts.prompt_text
            responses = [*self._reader.read(rollouts.token_ids, rollouts.tokens, rollouts.generated)]
        columns = {**vars(rollouts), "prompt_text": texts}
        return rollout_table(responses=responses, **columns)


def forget_after(paths: RunPaths, step: int) -> None:
    """Truncate both logs after ``step``; the resumed run repeats the later steps."""
    StepLog(paths.clusters).cut_after(step)
    for later in paths.rollout_steps():
        if later > step:
            paths.rollouts(later).unlink()


def cluster_line(rollouts: pa.Table) -> dict[str, Any]:
    """Histograms of cluster sizes and penalties, and the biggest clusters, for rows of `ROLLOUT_SCHEMA`.

    A histogram has k + 1 ``edges`` and k ``counts``; it is left out if there are no values.
    """
    sizes, penalties = (rollouts.column(name).to_numpy() for name in ("cluster_size", "penalty"))
    sizes, penalties = sizes[sizes > 0], penalties[np.isfinite(penalties) & (penalties != 0)].astype(np.float64)
    doubling = 2 ** np.arange(int(sizes.max(initial=0)).bit_length() + 1)  # 1, 2, 4, ... above the largest size
    # With 0 among the edges, because the penalties alone may differ only by rounding errors.
    equal = np.linspace(penalties.min(initial=0), penalties.max(initial=0), PENALTY_BINS + 1)
    histograms = {}
    for name, values, edges in (("meds/cluster_sizes", sizes, doubling), ("meds/penalties", penalties, equal)):
        if len(values):
            counts, _ = np.histogram(values, edges)
            histograms[name] = {"edges": edges.tolist(), "counts": counts.tolist()}
    return {"histograms": histograms, "biggest_clusters": _biggest_clusters(rollouts)}


def _biggest_clusters(rollouts: pa.Table) -> list[dict[str, Any]]:
    """The biggest clusters that got new members in this step, each with a new member as example."""
    joined = rollouts.filter((pc.field("label") >= 0) & (pc.field("cluster_size") > 0))
    clusters: dict[tuple[str, bool, int], list[dict[str, Any]]] = defaultdict(list)
    for row in joined.to_pylist():
        clusters[row["prompt"], row["correct"], row["label"]].append(row)
    biggest = sorted(clusters, key=lambda cluster: (-clusters[cluster][0]["cluster_size"], cluster))[:BIGGEST]
    return [_example(clusters[cluster][0], len(clusters[cluster])) for cluster in biggest]


def _example(row: dict[str, Any], members: int) -> dict[str, Any]:
    """A cluster of which a rollout is known: the beginning of its prompt, and the response's end with the answer."""
    prompt, response = row["prompt_text"], row["response"]
    if len(prompt) > EXAMPLE_CHARACTERS:
        prompt = f"{prompt[:EXAMPLE_CHARACTERS]} ..."
    if response is not None and len(response) > EXAMPLE_CHARACTERS:
        response = f"... {response[-EXAMPLE_CHARACTERS:]}"
    numbers = {"label": row["label"], "size": row["cluster_size"], "members": members}
    return {"prompt": row["prompt"], "prompt_text": prompt, **numbers, "answer": row["answer"], "response": response}
