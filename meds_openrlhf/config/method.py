"""How a prompt's errors are clustered, and how a new one finds its cluster: each setting declared once, and presets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

_CHOICES = {
    "algorithm": ("hdbscan", "robust", "library", "equal"),
    "assignment": ("knn", "joint"),
    "ties": ("nearest", "smallest"),
    "noise": ("none", "cluster"),
}


@dataclass(frozen=True, kw_only=True)
class Method:
    """The settings of clustering and assignment; the defaults are the paper's (Sections 3.2 and 3.3).

    Those in `OVERRIDES` are also settings under ``meds.memory``; the others belong to a preset. Raises ValueError for
    values that do not exist.
    """

    min_cluster_size: int = 2
    """HDBSCAN: the smallest set of rollouts that counts as a cluster."""
    assignment: str = "knn"
    """How a new rollout finds its cluster: "knn", that of most of the 3 nearest stored ones; or "joint", the one in
    which it is found if stored and new ones are clustered together."""
    noise: str = "none"
    """Whether noise counts as a "cluster" of all its rows, or as "none": no cluster, no penalty."""
    algorithm: str = "hdbscan"
    """"hdbscan", computed exactly; "robust", which also finds a single dominant error; "library", the hdbscan package
    with its own defaults; or "equal": equal rows form a cluster, which may have a single row, and nothing is noise."""
    ties: str = "nearest"
    """knn: who wins a tie of votes, the label of the "nearest" neighbour or the "smallest" label."""

    def __post_init__(self) -> None:
        for name in (*_CHOICES, "min_cluster_size"):
            value = getattr(self, name)
            problem = problem_of(name, value)
            if problem:
                raise ValueError(f"{name}: {value!r} {problem}")


def problem_of(name: str, value: Any) -> str | None:
    """Say what is wrong with a value of a field of `Method`; None if it is right."""
    if name == "min_cluster_size":
        return None if value >= 2 else "is below 2"
    return None if value in _CHOICES[name] else f"is not one of {', '.join(_CHOICES[name])}"


ANSWERS = "answers"
PRESETS = {
    "paper": Method(),
    # The hdbscan package with its own defaults, because label numbers decide the reference's three-way votes.
    "reference": Method(algorithm="library", ties="smallest", noise="cluster"),
    # The paper's setting labels a single tight group as noise, whatever its size; this preset finds it.
    "robust": Method(algorithm="robust"),
    # Final answers instead of layer logits: counts how often the same answer was given before.
    ANSWERS: Method(algorithm="equal"),
}
OVERRIDES = ("min_cluster_size", "assignment", "noise")  # settings that change a preset


def make_method(preset: str, **overrides: Any) -> Method:
    """Return the preset with the `OVERRIDES` that are not None applied. Raises ValueError for an unknown preset."""
    if preset not in PRESETS:
        raise ValueError(f"preset: {preset!r} is not one of {', '.join(PRESETS)}")
    return replace(PRESETS[preset], **{name: value for name, value in overrides.items() if value is not None})
