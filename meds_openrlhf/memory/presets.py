"""Named presets for clustering and assignment: the paper's, the reference code's, a more robust one, and answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from meds_openrlhf.memory.assignment import Assignment
from meds_openrlhf.memory.clustering import Clustering


@dataclass(frozen=True)
class Method:
    """How a prompt's memory is clustered, how new rollouts are assigned, and how many of the stored rows take part.

    ``noise``: with "none" a rollout among noise has size 0; with "cluster" noise counts as a cluster of all its rows.
    ``window_rows`` and ``window_visits`` limit the memory to a prompt's newest rows or to the rows of its newest
    visits; None means no limit. A visit is a step in which the prompt got rows; an epoch visits each prompt once.
    """

    clustering: Clustering
    assignment: Assignment
    noise: str = "none"
    window_rows: int | None = None
    window_visits: int | None = None


ANSWERS = "answers"
PRESETS = {
    "paper": Method(Clustering(min_cluster_size=2, min_samples=1), Assignment()),
    # The hdbscan package with its own defaults, because label numbers decide the reference's three-way votes.
    "reference": Method(Clustering(exact=False), Assignment(ties="smallest"), noise="cluster"),
    # The paper's setting labels a single tight group as noise, whatever its size; this preset finds it.
    "robust": Method(Clustering(allow_single_cluster=True, selection_epsilon="auto"), Assignment()),
    # Final answers instead of layer logits: counts how often the same answer was given before.
    ANSWERS: Method(Clustering(algorithm="equal"), Assignment("equal")),
}

# Names of overrides, and the fields that they stand for.
_CLUSTERING = {
    name: name
    for name in ("min_cluster_size", "min_samples", "metric", "allow_single_cluster", "selection_epsilon", "exact")
}
_ASSIGNMENT = {"assignment": "method", "neighbors": "neighbors", "neighbor_metric": "metric", "ties": "ties"}
_METHOD = {name: name for name in ("noise", "window_rows", "window_visits")}
OVERRIDES = (*_CLUSTERING, *_ASSIGNMENT, *_METHOD)


def make_method(preset: str, **overrides: Any) -> Method:
    """Return the preset with ``overrides`` applied; an override of None keeps the preset's value.

    Overrides are the fields of `Clustering` and `Method`, and of `Assignment` as ``assignment`` (its method),
    ``neighbors``, ``neighbor_metric`` and ``ties``. Raises ValueError for an unknown preset or override.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset: {preset!r} is not one of {', '.join(PRESETS)}")
    unknown = overrides.keys() - set(OVERRIDES)
    if unknown:
        raise ValueError(f"{min(unknown)}: is no setting of a preset")
    method = PRESETS[preset]
    return replace(
        method,
        clustering=replace(method.clustering, **_given(overrides, _CLUSTERING)),
        assignment=replace(method.assignment, **_given(overrides, _ASSIGNMENT)),
        **_given(overrides, _METHOD),
    )


def _given(overrides: dict[str, Any], fields: dict[str, str]) -> dict[str, Any]:
    """Return the overrides that are set, keyed by the names of the ``fields`` that they stand for."""
    return {field: overrides[name] for name, field in fields.items() if overrides.get(name) is not None}
