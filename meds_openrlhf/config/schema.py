"""The settings under ``meds.``: frozen dataclasses that refuse a wrong value when they are made."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from meds_openrlhf.config.errors import ConfigError


def _require(condition: bool, name: str, value: object, hint: str) -> None:
    if not condition:
        raise ConfigError(f"meds.{name}", value, hint)


def require_pattern(pattern: str | None, name: str = "meds.features.answer_pattern") -> None:
    """Raise ConfigError unless the pattern is None or a regular expression with one group, the answer."""
    if pattern is None:
        return
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ConfigError(name, pattern, f"is no regular expression: {error}") from error
    if groups != 1:
        hint = f"has {groups} groups; put one around the answer, as in 'Answer: (.*)', and write others as (?:...)"
        raise ConfigError(name, pattern, hint)


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
    """A regular expression with one group, the answer: its last match counts, for rewards and evaluation as well, and
    neither boxes nor openings do."""

    function: str | None = None
    """A Python file with a feature of your own, from hidden states or from texts; null: layer logits."""

    def __post_init__(self) -> None:
        is_count = isinstance(self.layers, int) and self.layers >= 1
        is_share = isinstance(self.layers, float) and 0 < self.layers < 1
        _require(
            is_count or is_share or self.layers in ("last-half", "all"),
            "features.layers",
            self.layers,
            'is not one of "last-half", "all", a number of layers from 1 up, or a share between 0 and 1',
        )
        _require(
            self.difference in ("none", "before", "after"),
            "features.difference",
            self.difference,
            'is not one of "none", "before" and "after"',
        )
        require_pattern(self.answer_pattern)
        _require(self.normalize in ("l2", "none"), "features.normalize", self.normalize, 'is neither "l2" nor "none"')
        _require(
            bool(self.answer_openings) and all(self.answer_openings),
            "features.answer_openings",
            list(self.answer_openings),
            "needs at least one text, none of them empty",
        )
        default = type(self).answer_openings
        hint = "does not go with answer_pattern, which replaces the openings; leave it out"
        replaced = self.answer_pattern is not None and self.answer_openings != default
        _require(not replaced, "features.answer_openings", list(self.answer_openings), hint)


REWARDS = ("math", "math-signed", "math-format", "math-string", "gym")

_MEMORY_CHOICES = {
    "on_lost": ("stop", "forget"),
    "remember": ("wrong", "right", "both"),
    "preset": ("paper", "reference", "robust", "answers"),
    "metric": ("euclidean", "manhattan", "cosine"),
    "assignment": ("knn", "joint"),
    "neighbor_metric": ("cosine", "euclidean"),
    "ties": ("nearest", "smallest"),
    "noise": ("none", "cluster"),
}
_OF_LOGITS = (
    *("min_cluster_size", "min_samples", "metric", "allow_single_cluster", "selection_epsilon"),
    *("assignment", "neighbors", "neighbor_metric", "ties", "noise"),
)
_OF_HISTORY = ("assignment", "neighbors", "neighbor_metric", "ties", "noise", "window_rows", "window_visits")
_MEMORY_LEAST = {"min_cluster_size": 2, "min_samples": 1, "neighbors": 1, "window_rows": 2, "window_visits": 1}


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """Where and how fingerprints of past errors are kept and clustered."""

    shards: int = 2
    """Ray actors that share the memory; a prompt always goes to the same one."""
    prompt_id_key: str | None = None
    """Column of the data set that names a prompt for good; null: a hash of the prompt's text."""
    fsync: bool = True
    """Whether every step's rows are on the disk, not only in the system's cache, before training goes on."""
    on_lost: str = "stop"
    """Where a restarted shard cannot reach rows that were stored: "stop", or "forget" them and go on."""
    archive: str | None = None
    """Where snapshots are kept as well, e.g. s3://bucket/my-run: for nodes that share no disk."""
    branch_from: str | None = None
    """A new run's memory begins as this snapshot of another: runs/old/memory/snapshots/global_step50.json."""
    remember: str = "wrong"
    """Whose rollouts are remembered and penalized: "wrong", "right" or "both" (each among its own kind)."""
    preset: str = "paper"
    """Where every setting below that is null comes from: "paper", "reference" (its code), "robust", or "answers", which
    remembers final answers in place of layer logits: equal ones are a cluster."""
    min_cluster_size: int | None = None
    """HDBSCAN: the smallest set of rollouts that counts as a cluster."""
    min_samples: int | None = None
    """HDBSCAN: neighbours that make a point dense; larger values call more rows noise."""
    metric: str | None = None
    """Distance between features when they are clustered: "euclidean", "manhattan" or "cosine"."""
    allow_single_cluster: bool | None = None
    """HDBSCAN: whether all rows may form one cluster."""
    selection_epsilon: float | str | None = None
    """HDBSCAN: clusters nearer to each other than this are one; "auto": as far as the features themselves suggest."""
    assignment: str | None = None
    """How a new rollout finds its cluster: "knn", or "joint", where stored and new ones are clustered together."""
    neighbors: int | None = None
    """knn: a new rollout joins the cluster of the majority of so many nearest stored ones."""
    neighbor_metric: str | None = None
    """knn: what makes them the nearest, "cosine" or "euclidean"."""
    ties: str | None = None
    """knn: who wins a tie of votes, the label of the "nearest" neighbour or the "smallest" label (slow)."""
    noise: str | None = None
    """Whether noise counts as a "cluster" of all its rows, or as "none": no cluster, no penalty."""
    window_rows: int | None = None
    """Only a prompt's newest so many rows take part."""
    window_visits: int | None = None
    """Only the rows of a prompt's newest so many visits (steps that brought it rows) take part."""

    def __post_init__(self) -> None:
        _require(self.shards >= 1, "memory.shards", self.shards, "is below 1; name at least one shard")
        for name, choices in _MEMORY_CHOICES.items():
            value, listed = getattr(self, name), ", ".join(f'"{choice}"' for choice in choices)
            _require(value is None or value in choices, f"memory.{name}", value, f"is not one of {listed}")
        for name, least in _MEMORY_LEAST.items():
            value = getattr(self, name)
            _require(value is None or value >= least, f"memory.{name}", value, f"is below {least}")
        self._require_epsilon()
        self._require_possible_metric()
        for name in _OF_LOGITS if self.preset == "answers" else ():
            hint = 'says nothing of the preset "answers", in which equal answers are a cluster; leave it out'
            _require(getattr(self, name) is None, f"memory.{name}", getattr(self, name), hint)

    def _require_epsilon(self) -> None:
        epsilon = self.selection_epsilon
        is_distance = isinstance(epsilon, (int, float)) and 0 <= epsilon < float("inf")
        hint = 'is neither "auto" nor a distance from 0 up'
        _require(epsilon in (None, "auto") or is_distance, "memory.selection_epsilon", epsilon, hint)

    def _require_possible_metric(self) -> None:
        is_auto = self.selection_epsilon == "auto" or (self.selection_epsilon is None and self.preset == "robust")
        hint = 'does not go with selection_epsilon "auto" (which the preset "robust" has); give that a distance'
        _require(not is_auto or self.metric != "manhattan", "memory.metric", self.metric, hint)
        # The preset takes the hdbscan library's default algorithm, which has no such metric.
        hint = 'does not go with the preset "reference"; use "euclidean" or "manhattan", or another preset'
        _require(self.preset != "reference" or self.metric != "cosine", "memory.metric", self.metric, hint)


@dataclass(frozen=True, kw_only=True)
class PenaltySettings:
    """``penalty = min(alpha * ln(cluster size + 1), beta)``, by which remembered rollouts lose reward."""

    scope: str = "history"
    """"history": the clusters are of earlier steps' rollouts. "batch": of this step's; no penalty then, but a bonus of
    ``min(alpha / cluster size, beta)``."""

    alpha: float = 0.1
    """How steeply the penalty grows with the logarithm of the cluster's size."""
    beta: float = 0.2
    """The largest penalty; the paper keeps it at twice alpha."""
    correct_threshold: float = 0.5
    """A rollout whose score (before shaping) reaches this is right; the others are wrong."""

    def __post_init__(self) -> None:
        hint = 'is neither "history" nor "batch"'
        _require(self.scope in ("history", "batch"), "penalty.scope", self.scope, hint)
        _require(self.alpha >= 0, "penalty.alpha", self.alpha, "is negative; a penalty never adds reward")
        _require(self.beta >= 0, "penalty.beta", self.beta, "is negative; a penalty never adds reward")


@dataclass(frozen=True, kw_only=True)
class RolloutSettings:
    """How engines generate, and which groups of rollouts are trained on."""

    keep_all_wrong: bool = False
    """Where OpenRLHF's dynamic filtering leaves groups out: keep those without a right answer."""
    max_num_seqs: int | None = None
    """vLLM's: sequences that an engine generates at a time; null: as its KV cache allows."""
    max_num_batched_tokens: int | None = None
    """vLLM's: tokens that an engine computes in a step; null: as its KV cache allows."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"rollout.{name}", value, "is below 1; leave it out for the default")
        sequences, tokens = self.max_num_seqs, self.max_num_batched_tokens
        if sequences is not None and tokens is not None:
            hint = f"is below rollout.max_num_seqs {sequences}, of which each takes a token; raise it"
            _require(tokens >= sequences, "rollout.max_num_batched_tokens", tokens, hint)


@dataclass(frozen=True, kw_only=True)
class EntropyAdvantageSettings:
    """``min(alpha * H, |A| / kappa)`` added to each token's advantage A, with H the policy's entropy there (detached).

    Cheng et al., "Reasoning with Exploration: An Entropy Perspective" (2025), Section 3.
    """

    alpha: float = 0.0
    """Weight of the entropy, in nats; 0: nothing is added. Its authors use 0.4 with GRPO."""
    kappa: float = 2.0
    """At most this part of the advantage is added, so that none turns its sign."""

    def __post_init__(self) -> None:
        _require(self.alpha >= 0, "policy.entropy_advantage.alpha", self.alpha, "is negative; 0 switches it off")
        hint = "is not above 1; the advantage could turn its sign"
        _require(self.kappa > 1, "policy.entropy_advantage.kappa", self.kappa, hint)


@dataclass(frozen=True, kw_only=True)
class KlCovSettings:
    """``coef * |log p - log p_old|`` added to the loss of the tokens with the largest covariance.

    Cui et al., "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models" (2025), KL-Cov.
    """

    coef: float = 0.0
    """Weight of the term; 0: nothing is added. Its authors use 1."""
    share: float = 0.002
    """Share of a micro-batch's tokens that get the term, at least one; its authors' for 7B models (32B: 0.0002)."""

    def __post_init__(self) -> None:
        _require(self.coef >= 0, "policy.kl_cov.coef", self.coef, "is negative; 0 switches it off")
        _require(0 < self.share <= 1, "policy.kl_cov.share", self.share, "is no share above 0 and up to 1")


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """What the policy's update has beyond OpenRLHF's."""

    minibatches: str = "responses"
    """A mini-batch (train.batch_size) is drawn from all "responses" of the step, or of whole "prompts"."""
    warmup_steps: int | None = None
    """Training steps over which the learning rate rises; null: OpenRLHF's share of the run, actor.lr_warmup_ratio."""
    entropy_advantage: EntropyAdvantageSettings = field(default_factory=EntropyAdvantageSettings)
    kl_cov: KlCovSettings = field(default_factory=KlCovSettings)

    def __post_init__(self) -> None:
        hint = 'is neither "responses" nor "prompts"'
        _require(self.minibatches in ("responses", "prompts"), "policy.minibatches", self.minibatches, hint)
        steps = self.warmup_steps
        _require(steps is None or steps >= 0, "policy.warmup_steps", steps, "is negative; 0 is no warm-up")
        hint = "does not go with meds.policy.entropy_advantage.alpha, which changes the same loss; set one of them to 0"
        _require(not (self.kl_cov.coef and self.entropy_advantage.alpha), "policy.kl_cov.coef", self.kl_cov.coef, hint)


@dataclass(frozen=True, kw_only=True)
class ExplorationSettings:
    """Other methods that keep a policy from collapsing, to compare with or to combine with the penalty."""

    pass_at_k: int | None = None
    """Advantages by pass@k training with this k, in place of the group's mean and deviation; null: none."""
    unlikeliness: float = 0.0
    """How much less the likeliest right response of a group is worth, as a share (beta_rank); 0: nothing."""
    answer_bonus: float = 0.0
    """Weight in the advantage of ``min(1, sqrt(1 / N)) - answer_baseline``, N: how often the answer came; 0: none."""
    answer_baseline: float = 0.5
    """An answer that came more than ``1 / answer_baseline ** 2`` times loses advantage, a rarer one gains."""

    def __post_init__(self) -> None:
        k, hint = self.pass_at_k, "is below 1; null switches it off"
        _require(k is None or k >= 1, "exploration.pass_at_k", k, hint)
        hint = "is no share from 0 to 1"
        _require(0 <= self.unlikeliness <= 1, "exploration.unlikeliness", self.unlikeliness, hint)
        hint = "is negative; 0 switches it off"
        _require(self.answer_bonus >= 0, "exploration.answer_bonus", self.answer_bonus, hint)
        hint = "is not between 0 and 1, as the bonus is"
        _require(0 <= self.answer_baseline <= 1, "exploration.answer_baseline", self.answer_baseline, hint)
        hint = "does not go with meds.exploration.answer_bonus, which changes the advantage too; leave one of them out"
        _require(k is None or not self.answer_bonus, "exploration.pass_at_k", k, hint)

    @property
    def in_use(self) -> str | None:
        """The name of a setting that is switched on, None if none is."""
        names = ("pass_at_k", "unlikeliness", "answer_bonus")
        return next((name for name in names if getattr(self, name)), None)


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """What becomes of LoRA adapters (``ds.lora.rank`` above 0)."""

    save: str = "merged"
    """The trained policy on disk: "merged", a whole model that vLLM and transformers load; or "adapter", PEFT's folder
    of the adapters alone."""

    def __post_init__(self) -> None:
        _require(self.save in ("merged", "adapter"), "lora.save", self.save, 'is neither "merged" nor "adapter"')


@dataclass(frozen=True, kw_only=True)
class PlacementSettings:
    """Which roles share GPUs, and how long the run waits for its share of the cluster."""

    mode: str = "flags"
    """OpenRLHF's "flags" as they are; "split" or "colocate" engines and policy; "auto" chooses between these two."""
    timeout_seconds: float = 300.0
    """A placement group that is not ready by then ends the run with a message that says what it waited for."""

    def __post_init__(self) -> None:
        modes = ("flags", "split", "colocate", "auto")
        listed = ", ".join(f'"{mode}"' for mode in modes)
        _require(self.mode in modes, "placement.mode", self.mode, f"is not one of {listed}")
        _require(self.timeout_seconds > 0, "placement.timeout_seconds", self.timeout_seconds, "is not above 0")


@dataclass(frozen=True, kw_only=True)
class WatchdogSettings:
    """When a run that does nothing any more is ended, so that it can be started again."""

    minutes: float | None = 60.0
    """No step (or, at the start, no model) finished for so long ends the run; above the longest step. null: never."""

    def __post_init__(self) -> None:
        hint = "is not above 0; null switches the watchdog off"
        _require(self.minutes is None or self.minutes > 0, "watchdog.minutes", self.minutes, hint)


@dataclass(frozen=True, kw_only=True)
class TrackingSettings:
    """What is kept of a run to be looked at, beside its metrics."""

    rollouts: str = "sampled"
    """Whose texts the run folder's rollouts/ keeps: of "all"; "sampled", of one of each prompt, verdict, cluster and
    answer a step, with the answers and numbers of all; or "none", which keeps no such log."""

    def __post_init__(self) -> None:
        hint = 'is not one of "all", "sampled" and "none"'
        _require(self.rollouts in ("all", "sampled", "none"), "tracking.rollouts", self.rollouts, hint)


@dataclass(frozen=True, kw_only=True)
class MedsSettings:
    """All settings of this project; every other key of a run's file is OpenRLHF's own flag."""

    run_dir: str
    """The run's folder, e.g. runs/my-run: configuration, checkpoints, memory, metrics."""
    enabled: bool = True
    """False: plain OpenRLHF, with nothing recorded, remembered or taken from the reward."""
    allow_cpu: bool = False
    """Train without a GPU, on the CPU build of the same stack: for the demo, for tests, for tiny models."""
    lock_seconds: float | None = 180.0
    """How long to wait for a file lock that a lost node may hold: longer than a lease of its file server. null: lock
    nothing, for file systems without locks; nothing then keeps two runs out of one folder."""
    max_steps: int | None = None
    """The run ends after so many steps, even if prompts are left; null: when train.num_episodes are over."""
    reward: str | None = None
    """A reward of this package: "math", "math-signed", "math-format", "math-string", "gym" (reasoning-gym's scorers);
    null: OpenRLHF's own settings."""
    features: FeatureSettings = field(default_factory=FeatureSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    penalty: PenaltySettings = field(default_factory=PenaltySettings)
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    exploration: ExplorationSettings = field(default_factory=ExplorationSettings)
    lora: LoraSettings = field(default_factory=LoraSettings)
    placement: PlacementSettings = field(default_factory=PlacementSettings)
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    watchdog: WatchdogSettings = field(default_factory=WatchdogSettings)

    def __post_init__(self) -> None:
        _require(bool(self.run_dir), "run_dir", self.run_dir, "is empty; name the run's folder, e.g. runs/my-run")
        hint = "is negative; null locks nothing, for file systems without locks"
        _require(self.lock_seconds is None or self.lock_seconds >= 0, "lock_seconds", self.lock_seconds, hint)
        hint = "is below 1; null trains to the end of train.num_episodes"
        _require(self.max_steps is None or self.max_steps >= 1, "max_steps", self.max_steps, hint)
        for name in _OF_HISTORY if self.penalty.scope == "batch" else ():
            hint = 'is about earlier rollouts, which meds.penalty.scope "batch" does not look at; leave it out'
            _require(getattr(self.memory, name) is None, f"memory.{name}", getattr(self.memory, name), hint)
        unused: tuple[str, ...] = ()
        hint = 'is about layer logits, of which the preset "answers" remembers none; leave it out'
        if self.memory.preset == "answers":
            unused = ("layers", "difference", "normalize", "logit_lens", "function")
        elif self.features.function is not None:
            unused = ("layers", "difference")
            hint = "is about layer logits, in whose place meds.features.function puts features; leave it out"
        for name in unused:
            value, default = getattr(self.features, name), getattr(FeatureSettings, name)
            _require(value == default, f"features.{name}", value, hint)
        listed = ", ".join(f'"{reward}"' for reward in REWARDS)
        _require(self.reward in (None, *REWARDS), "reward", self.reward, f"is not one of {listed}; or leave it out")
        openings = self.features.answer_openings
        hint = "is not what meds.reward judges, which looks for boxes; set answer_pattern instead, which both follow"
        judged = self.reward is None or openings == FeatureSettings.answer_openings
        _require(judged, "features.answer_openings", list(openings), hint)
        self._require_exploration()

    def _require_exploration(self) -> None:
        used = self.exploration.in_use
        hint = "needs meds.enabled: true; to compare without a penalty, set meds.penalty.alpha to 0"
        if used is not None:
            _require(self.enabled, f"exploration.{used}", getattr(self.exploration, used), hint)
        if self.exploration.answer_bonus:
            hint = "is not what meds.exploration.answer_bonus counts by; set {}"
            for name, needed in (("preset", "answers"), ("remember", "both")):
                found = getattr(self.memory, name)
                _require(found == needed, f"memory.{name}", found, hint.format(f'"{needed}"'))
            _require(self.penalty.scope == "history", "penalty.scope", self.penalty.scope, hint.format('"history"'))
