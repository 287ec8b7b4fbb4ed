"""A training step from rollouts to advantages: OpenRLHF's experience maker with a memory.

    make_experience    run OpenRLHF's forward passes; the policy returns layer logits with its log-probs
    collect            put the step's rollouts in the order of the samples and select those to remember
    ask                get the cluster and size of each selected rollout from the memory
    apply              subtract the penalty, before OpenRLHF's group mean, deviation and advantages

The raw reward stays unchanged: dynamic filtering uses it earlier, and ``info["reward"]`` and all of OpenRLHF's metrics
keep it. The reward that the policy is trained on is ``info["shaped_reward"]``.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties

from meds_openrlhf.config.schema import ExplorationSettings, PenaltySettings
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.assignment import UNASSIGNED
from meds_openrlhf.memory.clustering import Clustering, sizes_in_batch
from meds_openrlhf.memory.pool import MemoryPool
from meds_openrlhf.memory.rows import group_codes, make_rows, prompt_key, remembered_rows
from meds_openrlhf.memory.shard import MemoryAnswer
from meds_openrlhf.shaping.exploration import answer_bonus, pass_at_k_advantages, unlikeliness_weights
from meds_openrlhf.shaping.penalty import cluster_penalty, rarity_bonus, shaped_reward
from meds_openrlhf.tracking.diversity import DiversityTracker
from meds_openrlhf.tracking.metrics import StepFacts, step_metrics
from meds_openrlhf.training.actor import RecordedLogProbs, recorded_with
from meds_openrlhf.training.batches import even_batches, padded_batches
from meds_openrlhf.training.errors import RunLostError
from meds_openrlhf.training.final_answers import FinalAnswers
from meds_openrlhf.training.minibatches import ranks_of_roles
from meds_openrlhf.training.returns import cumulative_returns
from meds_openrlhf.training.roles import duplicates
from meds_openrlhf.training.samples import in_order, values_in_order
from meds_openrlhf.training.text_features import TextFeatures

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Collected:
    """A step's n rollouts in the order of the samples' index; the memory gets the ``remembered`` rollouts.

    ``features`` (n, N) are the rows for the memory, such as layer logits, NaN for a rollout without a feature;
    ``seconds`` is the time spent on recording them.
    """

    raw: NDArray[np.float32]  # (n,) rewards, after OpenRLHF's length penalties
    correct: NDArray[np.bool_]  # (n,)
    keys: list[str]  # (n,) of the prompts
    features: NDArray[np.float32]
    has_feature: NDArray[np.bool_]  # (n,)
    remembered: NDArray[np.intp]  # (m,) samples
    seconds: float


@dataclass(frozen=True)
class Judged:
    """Verdicts, clusters and cluster sizes of a step's n rollouts, in the order of the samples' index."""

    correct: NDArray[np.bool_]
    label: NDArray[np.int32]  # UNASSIGNED if the memory gave no label
    cluster_size: NDArray[np.int32]


@dataclass(frozen=True)
class StepResult:
    """The result of a step: experiences to train on, verdicts, and the memory's metrics."""

    experiences: list[Experience]
    judged: Judged
    metrics: dict[str, float]


def sampled_entropy(experiences: Sequence[Experience]) -> float:
    """Return the mean entropy of the policy, in nats per generated token.

    The mean of -log p over tokens that were drawn from p estimates the entropy of p, and needs no second pass over the
    vocabulary. It is without bias if nothing is filtered out, ``rollout.top_p`` is 1 and p drew the tokens itself.
    """
    total = sum(float((batch.action_log_probs * batch.action_mask).sum()) for batch in experiences)
    return -total / max(sum(int(batch.action_mask.sum()) for batch in experiences), 1)


class ExperienceMaker(RemoteExperienceMaker):
    """OpenRLHF's experience maker without its loops over samples and tokens in Python; the results are the same."""

    def __init__(self, *args: Any, correct_threshold: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._correct_threshold = correct_threshold

    def make_step(self, rollout_samples: list[Experience], step: int) -> StepResult:
        """Do the work of OpenRLHF's ``make_experience_batch``; scores of at least ``correct_threshold`` are right."""
        experiences = super().make_experience_batch(rollout_samples)
        scores = values_in_order(
            experiences, [batch.info["reward"] if batch.scores is None else batch.scores for batch in experiences]
        )
        nothing = np.full(len(scores), UNASSIGNED, np.int32), np.zeros(len(scores), np.int32)
        return StepResult(experiences, Judged(scores >= self._correct_threshold, *nothing), {})

    def split_rollout_samples(self, rollout_samples: list[Experience]) -> list[Experience]:
        """Number the samples, and join them to micro-batches.

        Raises RunLostError if the reward function failed for some of them.
        """
        missing = sum(sample.rewards is None for sample in rollout_samples)
        if missing and self.reward_model_group is None:
            what = f"{missing} of {len(rollout_samples)} responses have no reward"
            raise RunLostError(f"{what}: reward.remote_url raised or did not answer (--verbose prints why)")
        for number, sample in enumerate(rollout_samples):
            sample.index = [number]
        return padded_batches(rollout_samples, self._micro_batches(rollout_samples), self.tokenizer.pad_token_id)

    def _micro_batches(self, samples: list[Experience]) -> list[NDArray[np.int64]]:
        if self.args.train.dynamic_batch_enable:
            lengths = np.array([sample.sequences.shape[1] for sample in samples])
            most_tokens = self.args.rollout.max_tokens_per_gpu * duplicates(self.args)
            return even_batches(lengths, most_tokens, lcm(*ranks_of_roles(self.args)))
        size = self.args.rollout.micro_batch_size
        return [np.arange(start, min(start + size, len(samples))) for start in range(0, len(samples), size)]

    def get_cumulative_returns(
        self, rewards: torch.Tensor, action_mask: torch.Tensor | None, gamma: float
    ) -> torch.Tensor:
        """Return the discounted sum (B, A) of each token's and all later rewards (B, A), of generated tokens only."""
        if rewards.dtype != torch.float32:
            returns: torch.Tensor = super().get_cumulative_returns(rewards, action_mask, gamma)
            return returns
        masked = rewards if action_mask is None else action_mask * rewards
        return torch.from_numpy(cumulative_returns(masked.numpy(), np.float32(gamma)))


class MemoryExperienceMaker(ExperienceMaker):
    """Turns rollouts into experiences with rewards shaped by the memory of past errors.

    ``remember``: which rollouts are stored and penalized, "wrong", "right" or "both". ``exploration``: other methods
    that change rewards or advantages. ``texts`` makes the memory's rows, final answers or features of the user's;
    without it, they are what the policy records. ``tell`` sends messages to the user.
    """

    def __init__(
        self,
        *args: Any,
        strategy: Any,
        pool: MemoryPool,
        transform: FeatureTransform,
        clustering: Clustering,
        penalty: PenaltySettings,
        remember: str = "wrong",
        exploration: ExplorationSettings | None = None,
        key_of: Callable[[str], str] = prompt_key,
        texts: FinalAnswers | TextFeatures | None = None,
        diversity: DiversityTracker | None = None,
        tell: Callable[[str], None] = logger.warning,
        **kwargs: Any,
    ) -> None:
        without = _without_length_penalties(strategy)
        super().__init__(*args, strategy=without, correct_threshold=penalty.correct_threshold, **kwargs)
        self._length_args = strategy.args
        self._pool = pool
        self._transform = transform
        self._penalty = penalty
        self._remember = remember
        self._exploration = exploration or ExplorationSettings()
        self._key_of = key_of
        self._clustering = clustering
        self._texts = texts
        self._diversity = diversity
        self._tell = tell

    @torch.no_grad()
    def make_step(self, rollout_samples: list[Experience], step: int) -> StepResult:
        """Do the work of OpenRLHF's ``make_experience_batch``, with rewards shaped by the memory."""
        experiences = self.make_experience(self.split_rollout_samples(rollout_samples))
        collected = self._collect(experiences, step)
        answer, judged = self._ask(collected, step)
        shaped = self._discount_likely(experiences, self._apply(collected, judged), judged.correct)
        added = self._answer_bonus(collected, judged)
        experiences = self._advantages(experiences, collected.raw, shaped.astype(collected.raw.dtype), added)
        diversity = self._diversity_of(collected, answer)
        facts = StepFacts(
            raw_reward=collected.raw,
            shaped_reward=shaped,
            correct=judged.correct,
            group_size=self.args.rollout.n_samples_per_prompt,
            has_row=len(collected.remembered),
            recording_seconds=collected.seconds,
            diversity=diversity,
        )
        return StepResult(experiences, judged, step_metrics(facts, answer))

    def _flatten_results(self, refs: Any, duplicate_factor: int) -> list[Any]:
        """Return OpenRLHF's results, with the recorded data attached to the log-probs and so to the samples."""
        results = super()._flatten_results(refs, duplicate_factor)
        return [result.attached() if isinstance(result, RecordedLogProbs) else result for result in results]

    # ── collect, ask, apply ──

    def _collect(self, experiences: list[Experience], step: int) -> Collected:
        """Put a step's rollouts into the order of the samples, and select those for the memory."""
        for experience in experiences:
            experience.rewards = experience.rewards.to(torch.promote_types(experience.rewards.dtype, torch.float32))
        correct = values_in_order(experiences, map(_scores, experiences)) >= self._penalty.correct_threshold
        apply_length_penalties(experiences, self._length_args)
        seconds = 0.0
        if self._texts is not None:
            answered, features = self._texts.rows_of(experiences)
        else:
            recorded = [recorded_with(experience.action_log_probs) for experience in experiences]
            seconds = sum(batch.seconds for batch in recorded)
            answered = values_in_order(experiences, [batch.answered for batch in recorded])
            features = values_in_order(experiences, [batch.layer_logits for batch in recorded])
        has_feature = self._has_feature(answered, features, step)
        return Collected(
            raw=values_in_order(experiences, [batch.rewards for batch in experiences]),
            correct=correct,
            keys=in_order(experiences, [map(self._key_of, batch.prompts) for batch in experiences]),
            features=features,
            has_feature=has_feature,
            remembered=np.flatnonzero(remembered_rows(correct, self._remember) & has_feature),
            seconds=seconds,
        )

    def _ask(self, collected: Collected, step: int) -> tuple[MemoryAnswer, Judged]:
        """Store the remembered rows in the memory and return their clusters."""
        remembered = collected.remembered
        rows = make_rows(
            remembered,
            [collected.keys[sample] for sample in remembered],
            collected.correct[remembered],
            collected.features[remembered],
        )
        answer = self._pool.observe(step, rows)
        label = np.full(len(collected.correct), UNASSIGNED, np.int32)
        size = np.zeros(len(collected.correct), np.int32)
        if self._penalty.scope == "batch":
            features = self._transform(collected.features[remembered])
            size[remembered] = sizes_in_batch(features, group_codes(rows)[0], self._clustering)
        else:
            label[remembered], size[remembered] = answer.label, answer.size
        return answer, Judged(collected.correct, label, size)

    def _apply(self, collected: Collected, judged: Judged) -> NDArray[np.float64]:
        """Return the shaped rewards (n,) of all samples of the step."""
        limits = {"alpha": self._penalty.alpha, "beta": self._penalty.beta}
        if self._penalty.scope == "batch":
            return collected.raw + rarity_bonus(judged.cluster_size, **limits)
        return shaped_reward(collected.raw, cluster_penalty(judged.cluster_size, **limits), judged.correct)

    def _discount_likely(
        self, experiences: list[Experience], rewards: NDArray[np.float64], correct: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Return rewards (n,) in which right responses are worth less, the likelier they are in their group."""
        beta = self._exploration.unlikeliness
        if not beta:
            return rewards
        means = [
            (batch.action_log_probs * batch.action_mask).sum(1) / batch.action_mask.sum(1).clamp(min=1)
            for batch in experiences
        ]
        weights = unlikeliness_weights(self._in_groups(values_in_order(experiences, means)), beta).reshape(-1)
        return np.where(correct, rewards * weights, rewards)

    def _answer_bonus(self, collected: Collected, judged: Judged) -> NDArray[np.float32] | None:
        """Return what rare answers add to the advantages (n,), 0 for a response without an answer; None for nothing."""
        weight, baseline = self._exploration.answer_bonus, self._exploration.answer_baseline
        if not weight:
            return None
        bonus = answer_bonus(judged.cluster_size, weight=weight, baseline=baseline)
        return np.where(collected.has_feature, bonus, 0.0).astype(np.float32)

    def _advantages(
        self,
        experiences: list[Experience],
        raw: NDArray[np.float32],
        shaped: NDArray[np.float32],
        added: NDArray[np.float32] | None = None,
    ) -> list[Experience]:
        """Compute OpenRLHF's advantages from the ``shaped`` rewards (n,); metrics keep the ``raw`` rewards.

        ``added`` (n,) comes on top of the advantages of all tokens of a response. Pass@k advantages take the place of
        those that OpenRLHF would compute from the rewards.
        """
        trained_on, k = self._without_equal_groups(shaped), self._exploration.pass_at_k
        if k is not None:
            added = pass_at_k_advantages(self._in_groups(shaped), k).reshape(-1).astype(shaped.dtype)
            trained_on = np.zeros_like(shaped)
        for experience in experiences:
            experience.rewards = torch.from_numpy(trained_on[experience.index])
        experiences = self.compute_advantages_and_returns(experiences)
        if added is not None:
            _add_to_advantages(experiences, added)
        if k is not None:
            deviation = self._in_groups(shaped).std(axis=1, ddof=1).repeat(self.args.rollout.n_samples_per_prompt)
            for experience in experiences:
                experience.info["group_reward_std"] = torch.from_numpy(deviation[experience.index])
        for experience in experiences:
            experience.rewards = torch.from_numpy(shaped[experience.index])
            experience.info["reward"] = torch.from_numpy(raw[experience.index])
            experience.info["shaped_reward"] = experience.rewards.clone()
        return experiences

    def _without_equal_groups(self, rewards: NDArray[np.float32]) -> NDArray[np.float32]:
        """Set rewards to 0 in groups with equal rewards, if the estimator subtracts the group's mean anyway.

        In float32 the mean of sixteen values of -0.2 is not exactly -0.2, and OpenRLHF divides the difference by a
        deviation of 0 plus 1e-9. Without this correction a group at the limit of the penalty would get advantages of 15
        instead of 0.
        """
        if self.advantage_estimator != "group_norm":
            return rewards
        groups = self._in_groups(rewards)
        equal = groups.max(axis=1, keepdims=True) == groups.min(axis=1, keepdims=True)
        return np.where(equal, np.float32(0), groups).reshape(-1)

    def _in_groups(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values of samples (n,) as (prompts, responses to each)."""
        return values.reshape(-1, self.args.rollout.n_samples_per_prompt)

    def _diversity_of(self, collected: Collected, answer: MemoryAnswer) -> dict[str, float]:
        """Return metrics of the remembered layer logits and of the layer logits of right answers."""
        if self._diversity is None:
            return {}
        select, right = self._transform.select, collected.correct & collected.has_feature
        remembered = collected.features[collected.remembered]
        return self._diversity.add(select(remembered), select(collected.features[right]), answer.moments)

    def _has_feature(self, answered: NDArray[np.bool_], features: NDArray[np.float32], step: int) -> NDArray[np.bool_]:
        """Return which rollouts (n,) have an answer with finite features; tell how many have other features."""
        finite = np.isfinite(features).all(axis=1)
        broken = int((answered & ~finite).sum())
        if broken:
            of = f"{broken} of {answered.sum()} responses"
            self._tell(f"step {step}: features of {of} are not finite (has the policy diverged?); left out")
        return np.asarray(answered & finite)


def _add_to_advantages(experiences: Sequence[Experience], added: NDArray[np.float32]) -> None:
    """Add a value of each sample (n,) to the advantages and returns of all its tokens."""
    for experience in experiences:
        values = torch.from_numpy(added[experience.index])
        tokens = values[:, None] * experience.action_mask
        experience.advantages = experience.advantages + tokens
        experience.returns = experience.returns + tokens
        experience.info["return"] = experience.info["return"] + values


def _scores(experience: Experience) -> torch.Tensor:
    """Return the values that decide right or wrong: the verifier's scores, or the rewards if there are no scores."""
    return (experience.rewards if experience.scores is None else experience.scores).float()


def _without_length_penalties(strategy: Any) -> Any:
    """Return a copy of the strategy without length penalties, which `_collect` applies before the memory's penalty."""
    changed = copy.copy(strategy)
    changed.args = copy.copy(strategy.args)
    changed.args.reward = copy.copy(strategy.args.reward)
    changed.args.reward.overlong_buffer_len = None
    changed.args.reward.stop_properly_penalty_coef = None
    return changed
