"""A step's cluster statistics for dashboards, as one line of JSON per step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

BIGGEST = 10
PENALTY_BINS = 20
EXAMPLE_CHARACTERS = 4000  # limit for prompts and responses in the table


def cluster_line(rollouts: pa.Table) -> dict[str, Any]:
    """Histograms of cluster sizes and penalties, and the biggest clusters, for rows of ``rollout_log.ROLLOUT_SCHEMA``.

    A histogram has k + 1 ``edges`` and k ``counts``; it is left out if there are no values.
    """
    sizes, penalties = _numbers(rollouts, "cluster_size"), _numbers(rollouts, "penalty").astype(np.float64)
    penalties = penalties[np.isfinite(penalties) & (penalties != 0)]
    counted = {
        "meds/cluster_sizes": _histogram(sizes[sizes > 0], _doubling(sizes.max(initial=0))),
        "meds/penalties": _histogram(penalties, _from_zero(penalties)),
    }
    return {
        "histograms": {name: histogram for name, histogram in counted.items() if histogram is not None},
        "biggest_clusters": _biggest(rollouts),
    }


def _numbers(rollouts: pa.Table, name: str) -> NDArray[Any]:
    return np.asarray(rollouts.column(name).to_numpy())


def _doubling(largest: int) -> list[int]:
    """Edges 1, 2, 4, ... up to a power of two above the largest size."""
    return [2**power for power in range(int(largest).bit_length() + 1)]


def _from_zero(penalties: NDArray[np.float64]) -> NDArray[np.float64]:
    """Edges of equal bins that include 0, because the penalties alone may differ only by rounding errors."""
    return np.linspace(min(penalties.min(initial=0), 0), max(penalties.max(initial=0), 0), PENALTY_BINS + 1)


def _histogram(values: NDArray[Any], edges: Sequence[float] | NDArray[Any]) -> dict[str, list[float]] | None:
    if len(values) == 0:
        return None
    counts, edges = np.histogram(values, edges)
    return {"edges": edges.tolist(), "counts": counts.tolist()}


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
