"""How a prompt's errors are clustered, and how a new one finds its cluster: the settings, and their presets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from meds_openrlhf.config.section import Section, That, fit

ClusterSize = Annotated[int, That("is at least 2", lambda rows: rows >= 2)]
Assignment = Literal["knn", "joint"]
Noise = Literal["none", "cluster"]
Preset = Literal["paper", "reference", "robust", "equal", "answers"]


@dataclass(frozen=True, kw_only=True)
class ClusteringMethod(Section, name="meds.memory"):
    """How errors are clustered and new ones assigned; the defaults are the paper's (Sections 3.2 and 3.3)."""

    min_cluster_size: ClusterSize = 2
    assignment: Assignment = "knn"
    noise: Noise = "none"
    algorithm: Literal["hdbscan", "robust", "library", "equal"] = "hdbscan"
    """"hdbscan", computed exactly; "robust", which also finds a single dominant error; "library", the hdbscan package
    with its own defaults; or "equal": equal rows form a cluster, even a single row, and there is no noise."""
    ties: Literal["nearest", "smallest"] = "nearest"
    """What wins a tie of knn votes: the label of the "nearest" neighbor or the "smallest" label."""


ANSWERS: Preset = "answers"
EQUAL: Preset = "equal"
PRESETS: dict[str, ClusteringMethod] = {
    "paper": ClusteringMethod(),
    # The hdbscan package with its own defaults, because label numbers decide the reference's three-way votes.
    "reference": ClusteringMethod(algorithm="library", ties="smallest", noise="cluster"),
    # The paper's setting labels a single tight group as noise, whatever its size; this preset finds it.
    "robust": ClusteringMethod(algorithm="robust"),
    EQUAL: ClusteringMethod(algorithm="equal"),
    ANSWERS: ClusteringMethod(algorithm="equal"),
}
OVERRIDES = ("min_cluster_size", "assignment", "noise")  # settings that change a preset


def make_method(preset: str, **overrides: Any) -> ClusteringMethod:
    """Return the preset with the `OVERRIDES` that are not None applied. Raises ConfigError for an unknown preset."""
    known = PRESETS[fit(preset, Preset, "preset")]
    return replace(known, **{name: value for name, value in overrides.items() if value is not None})
