"""The settings under ``meds.``: frozen dataclasses that refuse a wrong value when they are made."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from meds_openrlhf.config.errors import ConfigError


def _require(condition: bool, name: str, value: object, mend: str) -> None:
    if not condition:
        raise ConfigError(f"meds.{name}", value, mend)


def _require_pattern(pattern: str | None) -> None:
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError("meds.features.answer_pattern", pattern, f"is no regular expression: {error}") from error


@dataclass(frozen=True, kw_only=True)
class FeatureSettings:
    """What is read off the policy at the answer token, and how it becomes a vector for clustering."""

    layers: str | int | float = "last-half"
    """Which decoder layers' logits make the feature: "last-half", "all", the last so many, or a share such as 0.25."""
    difference: str = "none"
    """Differences of adjacent layers: "none", "before" the last layers are selected, or "after"."""
    normalize: str = "l2"
    """Scaling of each feature vector before clustering: "l2" or "none"."""
    logit_lens: bool = False
    """Put the intermediate layers through the model's final norm as well; the paper's figures are without."""
    answer_openings: tuple[str, ...] = ("\\boxed{",)
    """Texts that open the final answer; the last one in a response counts, and the token after it is the answer."""
    answer_pattern: str | None = None
    """A regular expression whose match ends where the answer begins; counts beside the openings."""

    def __post_init__(self) -> None:
        is_count = isinstance(self.layers, int) and self.layers >= 1
        is_share = isinstance(self.layers, float) and 0 < self.layers < 1
        _require(
            is_count or is_share or self.layers in ("last-half", "all"),
            "features.layers",
            self.layers,
            'is none of "last-half", "all", a number of layers from 1 up, or a share between 0 and 1',
        )
        _require(
            self.difference in ("none", "before", "after"),
            "features.difference",
            self.difference,
            'is none of "none", "before" and "after"',
        )
        _require_pattern(self.answer_pattern)
        _require(self.normalize in ("l2", "none"), "features.normalize", self.normalize, 'is neither "l2" nor "none"')
        _require(
            bool(self.answer_openings) and all(self.answer_openings),
            "features.answer_openings",
            list(self.answer_openings),
            "needs at least one text, none of them empty",
        )


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """Where and how fingerprints of past errors are kept and clustered."""

    shards: int = 2
    """Ray actors that share the memory; a prompt always goes to the same one."""
    prompt_id_key: str | None = None
    """Column of the data set that names a prompt for good; null: a hash of the prompt's text."""
    fsync: bool = True
    """Whether every step's rows are on the disk, not only in the system's cache, before training goes on."""
    min_cluster_size: int = 2
    """HDBSCAN: the smallest set of errors that counts as a cluster."""
    min_samples: int = 1
    """HDBSCAN: neighbours that make a point dense; larger values call more rows noise."""
    neighbors: int = 3
    """A new rollout joins the cluster of the majority of so many nearest stored ones (cosine)."""

    def __post_init__(self) -> None:
        _require(self.shards >= 1, "memory.shards", self.shards, "is below 1; name at least one shard")
        _require(self.min_cluster_size >= 2, "memory.min_cluster_size", self.min_cluster_size, "is below 2")
        _require(self.min_samples >= 1, "memory.min_samples", self.min_samples, "is below 1")
        _require(self.neighbors >= 1, "memory.neighbors", self.neighbors, "is below 1")


@dataclass(frozen=True, kw_only=True)
class PenaltySettings:
    """``penalty = min(alpha * ln(cluster size + 1), beta)``, taken from the reward of wrong rollouts."""

    alpha: float = 0.1
    """How steeply the penalty grows with the logarithm of the cluster's size."""
    beta: float = 0.2
    """The largest penalty; the paper keeps it at twice alpha."""
    correct_threshold: float = 0.5
    """A rollout whose score (before shaping) reaches this is right; the others are wrong and remembered."""

    def __post_init__(self) -> None:
        _require(self.alpha >= 0, "penalty.alpha", self.alpha, "is negative; a penalty never adds reward")
        _require(self.beta >= 0, "penalty.beta", self.beta, "is negative; a penalty never adds reward")


@dataclass(frozen=True, kw_only=True)
class PlacementSettings:
    """How long the run waits for its share of the cluster."""

    timeout_seconds: float = 300.0
    """A placement group that is not ready by then ends the run with a message that says what it waited for."""

    def __post_init__(self) -> None:
        _require(self.timeout_seconds > 0, "placement.timeout_seconds", self.timeout_seconds, "is not above 0")


@dataclass(frozen=True, kw_only=True)
class MedsSettings:
    """All settings of this project; every other key of a run's file is OpenRLHF's own flag."""

    run_dir: str
    """The run's folder, e.g. runs/my-run: configuration, checkpoints, memory, metrics."""
    enabled: bool = True
    """False: plain OpenRLHF, with nothing recorded, remembered or taken from the reward."""
    allow_cpu: bool = False
    """Train without a GPU, on the CPU build of the same stack: for the demo, for tests, for tiny models."""
    reward: str | None = None
    """A reward that comes with this package ("math"); null: OpenRLHF's own reward settings."""
    features: FeatureSettings = field(default_factory=FeatureSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    penalty: PenaltySettings = field(default_factory=PenaltySettings)
    placement: PlacementSettings = field(default_factory=PlacementSettings)

    def __post_init__(self) -> None:
        _require(bool(self.run_dir), "run_dir", self.run_dir, "is empty; name the run's folder, e.g. runs/my-run")
        _require(self.reward in (None, "math"), "reward", self.reward, 'is not known; use "math" or leave it out')
