"""The settings under ``meds.``: frozen dataclasses that refuse a wrong value when they are made."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.method import ANSWERS, OVERRIDES, PRESETS, Method, make_method, problem_of


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
    """Which decoder layers' logits make the feature: "last-half", "all", the number of last layers, or a share of all,
    such as 0.25."""
    difference: str = "none"
    """Differences of adjacent layers: "none", "before" the last layers are selected, or "after"."""
    normalize: str = "l2"
    """Scaling of each feature vector before clustering: "l2" or "none"."""
    answer_openings: tuple[str, ...] = ("\\boxed{",)
    """Texts that open the final answer; the last one in a response counts, and the token after it is the answer. For
    rewards of your own: meds.reward looks for boxes."""
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


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """Where and how fingerprints of past errors are kept and clustered."""

    shards: int = 2
    """Ray actors that share the memory, one CPU each, on the driver's node; a prompt always goes to the same one."""
    branch_from: str | None = None
    """A new run's memory begins as this snapshot of another: runs/old/memory/snapshots/global_step50.json."""
    remember: str = "wrong"
    """Whose rollouts are remembered and penalized: "wrong", "right" or "both" (each among its own kind)."""
    preset: str = "paper"
    """Where the settings below that are null come from: "paper", "reference" (its code), "robust", or "answers", which
    remembers final answers in place of layer logits: equal ones are a cluster."""
    min_cluster_size: int | None = None
    """HDBSCAN: the smallest set of rollouts that counts as a cluster."""
    assignment: str | None = None
    """How a new rollout finds its cluster: "knn", or "joint", where stored and new ones are clustered together."""
    noise: str | None = None
    """Whether noise counts as a "cluster" of all its rows, or as "none": no cluster and no penalty."""

    @property
    def method(self) -> Method:
        """The preset with the settings that are not null applied."""
        return make_method(self.preset, **{name: getattr(self, name) for name in OVERRIDES})

    def __post_init__(self) -> None:
        _require(self.shards >= 1, "memory.shards", self.shards, "is below 1; name at least one shard")
        hint = 'is not one of "wrong", "right" and "both"'
        _require(self.remember in ("wrong", "right", "both"), "memory.remember", self.remember, hint)
        hint = f"is not one of {', '.join(PRESETS)}"
        _require(self.preset in PRESETS, "memory.preset", self.preset, hint)
        for name in OVERRIDES:
            value = getattr(self, name)
            problem = None if value is None else problem_of(name, value)
            _require(problem is None, f"memory.{name}", value, problem or "")
            hint = 'does not apply to the preset "answers", in which equal answers are a cluster; leave it out'
            _require(value is None or self.preset != ANSWERS, f"memory.{name}", value, hint)


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
    """With algo.dynamic_filtering_enable: keep the groups without a right answer, which are left out otherwise."""
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
class PolicySettings:
    """What the policy's update has beyond OpenRLHF's."""

    minibatches: str = "responses"
    """A mini-batch (train.batch_size) is drawn from all "responses" of the step, or of whole "prompts"."""
    warmup_steps: int | None = None
    """Training steps over which the learning rate rises; null: the share actor.lr_warmup_ratio of the run."""
    entropy_advantage: EntropyAdvantageSettings = field(default_factory=EntropyAdvantageSettings)

    def __post_init__(self) -> None:
        hint = 'is neither "responses" nor "prompts"'
        _require(self.minibatches in ("responses", "prompts"), "policy.minibatches", self.minibatches, hint)
        steps = self.warmup_steps
        _require(steps is None or steps >= 0, "policy.warmup_steps", steps, "is negative; 0 is no warm-up")


@dataclass(frozen=True, kw_only=True)
class ExplorationSettings:
    """Other methods that keep a policy from collapsing, to compare with or to combine with the penalty."""

    pass_at_k: int | None = None
    """Advantages by pass@k training with this k, in place of the group's mean and deviation; null: none."""
    answer_bonus: float = 0.0
    """Weight in the advantage of ``min(1, sqrt(1 / N)) - answer_baseline``, N being how often the answer was given to
    the prompt before; needs the preset "answers" and remember "both". 0: none."""
    answer_baseline: float = 0.5
    """An answer that came more than ``1 / answer_baseline ** 2`` times loses advantage, a rarer one gains."""

    def __post_init__(self) -> None:
        k, hint = self.pass_at_k, "is below 1; null switches it off"
        _require(k is None or k >= 1, "exploration.pass_at_k", k, hint)
        hint = "is negative; 0 switches it off"
        _require(self.answer_bonus >= 0, "exploration.answer_bonus", self.answer_bonus, hint)
        hint = "is not between 0 and 1, as the bonus is"
        _require(0 <= self.answer_baseline <= 1, "exploration.answer_baseline", self.answer_baseline, hint)
        hint = "does not go with meds.exploration.answer_bonus, which changes the advantage too; leave one of them out"
        _require(k is None or not self.answer_bonus, "exploration.pass_at_k", k, hint)

    @property
    def in_use(self) -> str | None:
        """The name of a setting that is switched on, None if none is."""
        return next((name for name in ("pass_at_k", "answer_bonus") if getattr(self, name)), None)


@dataclass(frozen=True, kw_only=True)
class PlacementSettings:
    """Which roles share GPUs, and how long the run waits for its share of the cluster."""

    mode: str = "flags"
    """OpenRLHF's "flags" as they are; "split" or "colocate" engines and policy; "auto": "colocate", unless the run is
    asynchronous."""
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
    """A run that finishes no step (or, at the start, loads no model) for this long is ended; null: never. It has to be
    longer than the longest step."""

    def __post_init__(self) -> None:
        hint = "is not above 0; null switches the watchdog off"
        _require(self.minutes is None or self.minutes > 0, "watchdog.minutes", self.minutes, hint)


@dataclass(frozen=True, kw_only=True)
class TrackingSettings:
    """What is kept of a run to be looked at, beside its metrics."""

    rollouts: str = "sampled"
    """Whose texts the log of rollouts has: "all"; "sampled", of each step one for each prompt, verdict, cluster and
    answer, beside the answers and numbers of all; or "none", which keeps no such log."""

    def __post_init__(self) -> None:
        hint = 'is not one of "all", "sampled" and "none"'
        _require(self.rollouts in ("all", "sampled", "none"), "tracking.rollouts", self.rollouts, hint)


@dataclass(frozen=True, kw_only=True)
class MedsSettings:
    """All settings of this project; every other key of a run's file is OpenRLHF's own flag."""

    run_dir: str
    """The run's folder, e.g. runs/my-run: configuration, checkpoints, memory, metrics."""
    enabled: bool = True
    """Whether rollouts are remembered and penalized; false: plain OpenRLHF."""
    allow_cpu: bool = False
    """Train without a GPU, on the CPU build of the same stack: for the demo, for tests, for tiny models."""
    lock_seconds: float | None = 180.0
    """How long a resumed run waits for a lock that a lost node still holds; longer than the lease of the file server.
    null: lock nothing, for file systems without locks; nothing then keeps two runs out of one folder."""
    max_steps: int | None = None
    """The run ends after this many steps, even if prompts are left; null: when train.num_episodes are over."""
    reward: str | None = None
    """A reward of this package: "math", "math-signed", "math-format", "math-string", "gym" (reasoning-gym's scorers);
    null: OpenRLHF's own flags."""
    features: FeatureSettings = field(default_factory=FeatureSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    penalty: PenaltySettings = field(default_factory=PenaltySettings)
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    exploration: ExplorationSettings = field(default_factory=ExplorationSettings)
    placement: PlacementSettings = field(default_factory=PlacementSettings)
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    watchdog: WatchdogSettings = field(default_factory=WatchdogSettings)

    def __post_init__(self) -> None:
        _require(bool(self.run_dir), "run_dir", self.run_dir, "is empty; name the run's folder, e.g. runs/my-run")
        hint = "is negative; null locks nothing, for file systems without locks"
        _require(self.lock_seconds is None or self.lock_seconds >= 0, "lock_seconds", self.lock_seconds, hint)
        hint = "is below 1; null trains to the end of train.num_episodes"
        _require(self.max_steps is None or self.max_steps >= 1, "max_steps", self.max_steps, hint)
        for name in ("assignment", "noise") if self.penalty.scope == "batch" else ():
            hint = 'is about earlier rollouts, which meds.penalty.scope "batch" does not look at; leave it out'
            _require(getattr(self.memory, name) is None, f"memory.{name}", getattr(self.memory, name), hint)
        unused: tuple[str, ...] = ()
        hint = 'is about layer logits, of which the preset "answers" remembers none; leave it out'
        if self.memory.preset == "answers":
            unused = ("layers", "difference", "normalize", "function")
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
