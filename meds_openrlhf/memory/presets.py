"""The ways of clustering and assigning that have a name: the paper's, the reference code's, and a sturdier one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from meds_openrlhf.memory.assignment import Assignment
from meds_openrlhf.memory.clustering import Clustering


@dataclass(frozen=True)
class Method:
    """How a prompt's memory is clustered, how new rollouts find their cluster, and how much of the past counts.

    ``noise``: "none", a rollout among noise has size 0, or "cluster", noise counts as a cluster of all its rows.
    ``window_rows`` and ``window_visits``: only a prompt's newest so many rows, or the rows of its newest so many visits
    take part; None: all. A visit is a step in which the prompt got rows; an epoch visits each prompt once.
    """

    clustering: Clustering
    assignment: Assignment
    noise: str = "none"
    window_rows: int | None = None
    window_visits: int | None = None


ANSWERS = "answers"
PRESETS = {
    "paper": Method(Clustering(min_cluster_size=2, min_samples=1), Assignment()),
    # hdbscan itself, with its own defaults: label numbers decide the reference's three-way votes.
    "reference": Method(Clustering(exact=False), Assignment(ties="smallest"), noise="cluster"),
    # The paper's setting calls one tight group noise, however large; this one finds it.
    "robust": Method(Clustering(allow_single_cluster=True, selection_epsilon="auto"), Assignment()),
    # Final answers in place of layer logits: how often the same one was given before.
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
    """The preset of that name with single settings changed; one that is None stays as the preset has it.

    Overrides are the fields of `Clustering` and `Method`, and of `Assignment` as ``assignment`` (its method),
    ``neighbors``, ``neighbor_metric`` and ``ties``. Raises ValueError for a preset or override that does not exist.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset: {preset!r} is none of {', '.join(PRESETS)}")
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
    """Those of ``overrides`` that stand for ``fields``, by the fields' names."""
    return {field: overrides[name] for name, field in fields.items() if overrides.get(name) is not None}
