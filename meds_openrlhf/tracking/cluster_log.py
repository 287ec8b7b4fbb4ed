"""A step's cluster statistics for dashboards, as one line of JSON per step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BIGGEST = 10
PENALTY_BINS = 20
EXAMPLE_CHARACTERS = 4000  # limit for prompts and responses in the table


def cluster_line(rollouts: pa.Table) -> dict[str, Any]:
    """Histograms of cluster sizes and penalties, and the biggest clusters, for rows of ``rollout_log.ROLLOUT_SCHEMA``.

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
    return {"histograms": histograms, "biggest_clusters": _biggest(rollouts)}


def _biggest(rollouts: pa.Table) -> list[dict[str, Any]]:
    """The biggest clusters that got new members in this step, each with a new member as example."""
    joined = rollouts.filter(
        pc.and_kleene(pc.greater_equal(rollouts.column("label"), 0), pc.greater(rollouts.column("cluster_size"), 0))
    )
    members: dict[tuple[str, bool, int], list[int]] = {}
    keys = zip(*(joined.column(name).to_pylist() for name in ("prompt", "correct", "label")))
    for row, key in enumerate(keys):
        members.setdefault(key, []).append(row)
    sizes = joined.column("cluster_size").to_pylist()
    biggest = sorted(members, key=lambda key: (-sizes[members[key][0]], key))[:BIGGEST]
    return [_described(joined.slice(members[key][0], 1).to_pylist()[0], len(members[key])) for key in biggest]


def _described(example: dict[str, Any], members: int) -> dict[str, Any]:
    return {
        "prompt": example["prompt"],
        "prompt_text": _beginning(example["prompt_text"]),
        "label": example["label"],
        "size": example["cluster_size"],
        "members": members,
        "answer": example["answer"],
        "response": _end(example["response"]),
    }


def _beginning(text: str) -> str:
    return text if len(text) <= EXAMPLE_CHARACTERS else f"{text[:EXAMPLE_CHARACTERS]} ..."


def _end(text: str | None) -> str | None:
    """The end of a response, which contains the answer."""
    return text if text is None or len(text) <= EXAMPLE_CHARACTERS else f"... {text[-EXAMPLE_CHARACTERS:]}"
