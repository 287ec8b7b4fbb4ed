"""The settings under ``meds.``; the docstrings below the fields become docs/configuration.md (`make settings`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from meds_openrlhf.config.method import (
    ANSWERS,
    EQUAL,
    OVERRIDES,
    Assignment,
    ClusteringMethod,
    ClusterSize,
    Noise,
    Preset,
    make_method,
)
from meds_openrlhf.config.section import Section, That

MOST_SHARDS = 1_000
LONGEST_PATTERN = 1_000  # characters
Count = Annotated[int, That("is at least 1", lambda count: count >= 1)]
NotNegative = Annotated[float, That("is at least 0", lambda number: number >= 0)]
Positive = Annotated[float, That("is above 0", lambda number: number > 0)]
Share = Annotated[float, That("is above 0 and below 1", lambda share: 0 < share < 1)]


def _has_one_group(pattern: str) -> bool:
    import regex  # which searches with it; late, for most commands have no pattern

    try:
        return len(pattern) <= LONGEST_PATTERN and bool(regex.compile(pattern).groups == 1)
    except (regex.error, RecursionError, OverflowError, MemoryError):
        return False


Pattern = Annotated[str, That("is a regular expression with one group, e.g. 'Answer: (.*)'", _has_one_group)]


@dataclass(frozen=True, kw_only=True)
class FeatureSettings(Section, name="meds.features"):
    """What is read from the policy at the answer token, and how it becomes a vector for clustering."""

    layers: Literal["last-half", "all"] | Count | Share = "last-half"
    """The decoder layers whose logits are clustered: "last-half", "all", the number of last layers, or a share."""
    difference: Literal["none", "before", "after"] = "none"
    """Cluster differences of adjacent layers: "none", or those taken "before" or "after" the layers are selected."""
    normalize: Literal["l2", "none"] = "l2"
    """How each feature vector is scaled before clustering: "l2" or "none"."""
    answer_pattern: Pattern | None = None
    """A regular expression whose only group is the answer; its last match counts, and boxes do not."""
    function: str | None = None
    """A Python file that computes your own feature from hidden states or from texts; null: layer logits."""


@dataclass(frozen=True, kw_only=True)
class MemorySettings(Section, name="meds.memory"):
    """Where and how fingerprints of past errors are kept and clustered."""

    shards: Count = 2
    """Number of Ray actors among which the memory's prompts are divided, each with one CPU on the driver's node."""
    remember: Literal["wrong", "right", "both", "none"] = "wrong"
    """Which rollouts are remembered and penalized: "wrong", "right", or "both", which are clustered separately. "none":
    no rollouts, hence no penalty; only how often each prompt was solved, which every run remembers."""
    preset: Preset = "paper"
    """Defaults of the settings below: "paper", "reference" (the paper's code), "robust", "equal" (equal vectors of
    meds.features.function), or "answers", which remembers final answers in place of layer logits and clusters equal
    answers."""
    min_cluster_size: ClusterSize | None = None
    """The smallest set of rollouts that HDBSCAN counts as a cluster; null: the preset's."""
    assignment: Assignment | None = None
    """How a new rollout gets its cluster: "knn", by a vote of its nearest neighbors, or "joint", by clustering it with
    the stored rollouts; null: the preset's."""
    noise: Noise | None = None
    """Whether noise counts as one "cluster" or as "none", without a penalty; null: the preset's."""
    success_decay: Annotated[float, That("is above 0 and at most 1", lambda decay: 0 < decay <= 1)] = 0.9
    """What a visit counts for its prompt's remembered success after each later visit; 1: all visits count the same."""

    @property
    def method(self) -> ClusteringMethod:
        """The preset with the settings that are not null applied."""
        return make_method(self.preset, **{name: getattr(self, name) for name in OVERRIDES})


@dataclass(frozen=True, kw_only=True)
class PenaltySettings(Section, name="meds.penalty"):
    """What the memory takes from a wrong rollout: the more, the larger its cluster."""

    form: Literal["reward", "weights"] = "reward"
    """"reward": a remembered rollout loses ``min(alpha * ln(cluster size + 1), beta)`` of its reward. "weights": the
    negative advantages of a group's wrong rollouts are divided among them in proportion to ``cluster size + 1``; alpha
    and beta have no effect then."""
    extras: Annotated[int, That("is at least 0", lambda groups: groups >= 0)] = 0
    """Groups without a right rollout that are trained on in a step, in addition to rollout.batch_size, with small
    negative advantages; dynamic filtering has generated and dropped them. Limited by how many were dropped."""
    shuffled: bool = False
    """A control: exchange the cluster sizes of a group's rollouts at random."""
    alpha: NotNegative = 0.1
    """How steeply the penalty grows with the logarithm of the cluster's size."""
    beta: NotNegative = 0.2
    """The largest penalty; the paper sets it to twice alpha."""
    correct_threshold: float = 0.5
    """A rollout is right if its score (before shaping) is at least this, and wrong otherwise."""


@dataclass(frozen=True, kw_only=True)
class RolloutSettings(Section, name="meds.rollout"):
    """How engines generate."""

    max_num_seqs: Count | None = None
    """vLLM's limit of sequences that an engine generates at a time; null: twice as many as fit at full length,
    at most 1,024."""
    max_num_batched_tokens: Count | None = None
    """vLLM's limit of tokens that an engine computes in a step; null: as many as its KV cache holds, at most 16,384."""


@dataclass(frozen=True, kw_only=True)
class EntropyAdvantageSettings(Section, name="meds.policy.entropy_advantage"):
    """Add ``min(alpha * H, |A| / kappa)`` to a token's advantage A; H is its entropy (Cheng et al. 2025, Section 3)."""

    alpha: NotNegative = 0.0
    """Weight of the policy's entropy (in nats) in a token's advantage; 0: none. The authors use 0.4 with GRPO."""
    kappa: Annotated[float, That("is above 1", lambda kappa: kappa > 1)] = 2.0
    """At most ``1 / kappa`` of the advantage's absolute value is added, so that no advantage changes its sign."""


@dataclass(frozen=True, kw_only=True)
class PolicySettings(Section, name="meds.policy"):
    """What the policy's update has beyond OpenRLHF's."""

    minibatches: Literal["responses", "prompts"] = "responses"
    """What a mini-batch (train.batch_size) has: any "responses" of the step, or "prompts" with all their responses."""
    warmup_steps: Annotated[int, That("is at least 0", lambda steps: steps >= 0)] | None = None
    """Training steps over which the learning rate rises; null: the share of the run in actor.lr_warmup_ratio."""
    entropy_advantage: EntropyAdvantageSettings = field(default_factory=EntropyAdvantageSettings)


@dataclass(frozen=True, kw_only=True)
class ExplorationSettings(Section, name="meds.exploration"):
    """Other methods that keep a policy from collapsing, to compare with or to combine with the penalty."""

    pass_at_k: Count | None = None
    """The k of pass@k training, which computes the advantages in place of the group's mean and deviation; null: off."""
    answer_bonus: NotNegative = 0.0
    """Weight of ``min(1, sqrt(1 / N)) - answer_baseline`` in the advantage, where N counts how often the prompt was
    given this answer before; 0: none. Needs the preset "answers" and remember "both"."""
    right_weight: Annotated[float, That("is from 0 to 1", lambda weight: 0 <= weight <= 1)] = 1.0
    """Factor of the positive advantages of right responses, lambda in W-REINFORCE, whose authors use 0.1; 1: off."""
    focal_gamma: NotNegative = 0.0
    """Advantages are multiplied by ``(1 - p) ** focal_gamma``, where p is the prompt's remembered success; 0: off. The
    authors of F-GRPO, who take p of the group itself, use 0.5 and 1."""
    answer_baseline: Annotated[float, That("is from 0 to 1", lambda bonus: 0 <= bonus <= 1)] = 0.5
    """An answer that was given more than ``1 / answer_baseline ** 2`` times loses advantage; a rarer one gains."""


@dataclass(frozen=True, kw_only=True)
class PlacementSettings(Section, name="meds.placement"):
    """Which roles share GPUs, and how long the run waits for its share of the cluster."""

    mode: Literal["flags", "split", "colocate", "auto"] = "flags"
    """Who shares GPUs: as OpenRLHF's "flags" say; "split": engines and policy apart; "colocate": all roles together;
    "auto": "colocate", unless the run is asynchronous."""
    timeout_seconds: Positive = 300.0
    """Seconds to wait for nodes that join and for GPUs and CPUs in use; then the run ends and says what is missing."""


@dataclass(frozen=True, kw_only=True)
class WatchdogSettings(Section, name="meds.watchdog"):
    """When to end a run that hangs, so that it can be started again."""

    minutes: Positive | None = 240.0
    """End the run if nothing finishes for this long; set it above the longest step. null: never."""


@dataclass(frozen=True, kw_only=True)
class TrackingSettings(Section, name="meds.tracking"):
    """What a run logs in addition to metrics."""

    rollouts: Literal["all", "sampled", "none"] = "sampled"
    """What the rollout log keeps: "all" response texts; "sampled": the answers and numbers of all responses, but only
    one text per step, prompt, verdict, cluster and answer; or "none"."""


@dataclass(frozen=True, kw_only=True)
class MedsSettings(Section, name="meds"):
    """All settings of this project; every other key of a run's file is OpenRLHF's own flag."""

    run_dir: Annotated[str, That("is not empty", bool)]
    """The run's folder, e.g. runs/my-run, for its configuration, checkpoints, memory and metrics."""
    enabled: bool = True
    """Whether to remember and penalize rollouts; false: the same training without a memory."""
    allow_cpu: bool = False
    """Train without a GPU, on the CPU builds of the same libraries; for the demo, tests and tiny models."""
    trust_remote_code: bool = False
    """Whether models may run Python code of their own; without it, a model that has some is refused."""
    lock_seconds: NotNegative | None = 180.0
    """Seconds that a resumed run waits for the lock of a lost node; set it above the file server's lease time. null: no
    locks, for file systems without them; then nothing prevents two runs in one folder."""
    max_steps: Count | None = None
    """Stop after this many steps, even if prompts are left; null: train for train.num_episodes."""
    reward: Literal["math", "math-signed", "math-format", "math-string", "gym"] | None = None
    """"math", "math-signed", "math-format", "math-string", or "gym" (rewards.md); null: as OpenRLHF's flags say."""
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
        super().__post_init__()
        features, memory, penalty, exploration = self.features, self.memory, self.penalty, self.exploration
        memory.require(memory.shards <= MOST_SHARDS, "shards", f"must be at most {MOST_SHARDS}.")
        if memory.preset == ANSWERS:
            hint, preset = 'does not apply to the preset "answers", which clusters equal answers.', "meds.memory.preset"
            memory.require_default(OVERRIDES, hint, preset)
            hint = 'concerns layer logits, but the preset "answers" remembers final answers.'
            features.require_default(("layers", "difference", "normalize", "function"), hint, preset)
        if memory.remember == "none":
            hint = f'must be "{ANSWERS}" for meds.memory.remember "none", which needs no layer logits.'
            memory.require(memory.preset == ANSWERS, "preset", hint)
            hint = 'does not apply to meds.memory.remember "none", of which there are no sizes.'
            penalty.require_default(("shuffled",), hint, "meds.memory.remember")
        if memory.preset == EQUAL:
            hint = 'does not apply to the preset "equal", which clusters equal vectors.'
            memory.require_default(OVERRIDES, hint, "meds.memory.preset")
            hint = f'must be set for meds.memory.preset "{EQUAL}", because layer logits are never equal.'
            features.require(features.function is not None, "function", hint)
        if penalty.form == "weights":
            hint = 'must be "wrong" or "both" for meds.penalty.form "weights", which are of wrong rollouts.'
            memory.require(memory.remember in ("wrong", "both"), "remember", hint)
        if features.function is not None:
            hint = "concerns layer logits, which meds.features.function replaces."
            features.require_default(("layers", "difference"), hint, "meds.features.function")
        if not self.enabled:
            hint = "needs meds.enabled: true; to compare without a penalty, set meds.penalty.alpha to 0."
            own = (
                (exploration, ("pass_at_k", "answer_bonus", "right_weight", "focal_gamma")),
                (penalty, ("form", "extras", "shuffled")),
            )
            for section, key in ((section, key) for section, keys in own for key in keys):
                is_off = getattr(section, key) == getattr(type(section), key)
                section.require(is_off, key, f"{hint} Leave it out.")
        if exploration.answer_bonus:
            hint = "cannot be combined with answer_bonus; both change the advantage. Leave it out."
            exploration.require(exploration.pass_at_k is None, "pass_at_k", hint)
            hint = 'must be "{}" for meds.exploration.answer_bonus.'
            memory.require(memory.preset == ANSWERS, "preset", hint.format(ANSWERS))
            memory.require(memory.remember == "both", "remember", hint.format("both"))
