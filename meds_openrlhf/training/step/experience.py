"""From rollouts to advantages: OpenRLHF's experience maker with a memory.

    make_experience    OpenRLHF's forward passes, while the policy's ranks record layer logits
    collect            rewards, verdicts and what was recorded, in the order of the samples
    ask                the memory for the cluster and its size of each rollout that it remembers
    shape              the rewards by these sizes
    advantages         OpenRLHF's from the shaped rewards; for a wrong rollout at most 0, or what the raw rewards give

The raw reward stays unchanged: dynamic filtering uses it earlier, and ``info["reward"]`` and all of OpenRLHF's metrics
keep it. The reward that the policy is trained on is ``info["shaped_reward"]``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import lcm
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties
from scipy.signal import lfilter

from meds_openrlhf.config.method import Method
from meds_openrlhf.config.schema import PenaltySettings
from meds_openrlhf.features.final_answer import answer_rows
from meds_openrlhf.memory.assignment import UNASSIGNED
from meds_openrlhf.memory.clustering import NOISE, cluster_sets
from meds_openrlhf.memory.rows import group_codes, make_rows, remembered_rows
from meds_openrlhf.memory.shard import MemoryAnswer
from meds_openrlhf.runtime.errors import RunLostError
from meds_openrlhf.shaping.exploration import answer_bonus, pass_at_k_advantages
from meds_openrlhf.shaping.penalty import cluster_penalty, rarity_bonus, shaped_reward
from meds_openrlhf.tracking.metrics import DiversityTracker, StepFacts, step_metrics
from meds_openrlhf.training.host.openrlhf import duplicates, ranks_of_roles
from meds_openrlhf.training.step.batches import even_batches, padded_batches
from meds_openrlhf.training.step.policy import Recorded
from meds_openrlhf.training.step.samples import in_order, is_right, prompt_keys, values_in_order
from meds_openrlhf.training.watch.control import TrainerContext

# From a step's experiences and what was recorded: which rollouts can have a row (n,), and the rows (n, d).
RowMaker = Callable[[Sequence[Experience], Recorded], tuple[NDArray[np.bool_], NDArray[np.float32]]]


def rows_of_layers(_experiences: object, recorded: Recorded) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
    """Make the rows of layer logits (n, N)."""
    return recorded.located, recorded.layer_logits


def rows_of_answers(_experiences: object, recorded: Recorded) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
    """Make the rows of final answers (n, 2)."""
    return np.array([answer is not None for answer in recorded.answers]), answer_rows(recorded.answers)


@dataclass(frozen=True)
class Collected:
    """A step's n rollouts in the order of the samples' index; the memory gets the ``remembered`` rollouts."""

    raw: NDArray[np.float32]  # (n,) rewards, after OpenRLHF's length penalties
    correct: NDArray[np.bool_]  # (n,)
    keys: list[str]  # (n) of the prompts
    features: NDArray[np.float32]  # (n, N) rows for the memory, such as layer logits
    has_feature: NDArray[np.bool_]  # (n,)
    remembered: NDArray[np.intp]  # (m,) samples


@dataclass(frozen=True)
class Judged:
    """Verdicts, clusters and cluster sizes of a step's n rollouts, in the order of the samples' index."""

    correct: NDArray[np.bool_]
    label: NDArray[np.int32]  # UNASSIGNED if the memory gave no label
    cluster_size: NDArray[np.int32]


@dataclass(frozen=True)
class StepResult:
    """The result of a step: experiences to train on, verdicts, and metrics."""

    experiences: list[Experience]
    judged: Judged
    metrics: dict[str, float]


class ExperienceMaker(RemoteExperienceMaker):
    """OpenRLHF's experience maker without its loops over samples and tokens in Python; the results are the same."""

    def __init__(self, *args: Any, correct_threshold: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._correct_threshold = correct_threshold

    @torch.no_grad()
    def make_step(self, rollout_samples: list[Experience], step: int) -> StepResult:
        """Do the work of OpenRLHF's ``make_experience_batch``; scores of at least ``correct_threshold`` are right."""
        experiences, recorded = self._run_models(rollout_samples)
        correct = self._verdicts(experiences)
        nothing = np.full(len(correct), UNASSIGNED, np.int32), np.zeros(len(correct), np.int32)
        experiences = self.compute_advantages_and_returns(experiences)
        return StepResult(experiences, Judged(correct, *nothing), metrics_of_policy(experiences, recorded))

    def _run_models(self, rollout_samples: list[Experience]) -> tuple[list[Experience], Recorded]:
        """Run OpenRLHF's forward passes, and fetch from the policy's ranks what they recorded."""
        experiences = self.make_experience(self.split_rollout_samples(rollout_samples))
        ranks = ray.get(self.actor_model_group.async_run_method("take_recorded"))[:: duplicates(self.args)]
        batches: list[Recorded] = list(chain.from_iterable(ranks))  # ranks have runs of micro-batches, in their order
        recorded = Recorded(
            answers=in_order(experiences, [batch.answers for batch in batches]),
            located=values_in_order(experiences, [batch.located for batch in batches]),
            layer_logits=values_in_order(experiences, [batch.layer_logits for batch in batches]),
            seconds=sum(batch.seconds for batch in batches),
        )
        return experiences, recorded

    def _verdicts(self, experiences: Sequence[Experience]) -> NDArray[np.bool_]:
        """Return which rollouts (n,) are right, in the order of the samples' index."""
        return values_in_order(experiences, [is_right(batch, self._correct_threshold) for batch in experiences])

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
        """Return the discounted sum (B, A) of each token's and all later rewards (B, A), of generated tokens only.

        It is the filter ``returns[t] = rewards[t] + gamma * returns[t + 1]``, in OpenRLHF's order of operations.
        """
        if rewards.dtype != torch.float32:
            returns: torch.Tensor = super().get_cumulative_returns(rewards, action_mask, gamma)
            return returns
        masked = rewards if action_mask is None else action_mask * rewards
        backwards = lfilter(np.ones(1, np.float32), np.array([1, -gamma], np.float32), masked.numpy()[:, ::-1])
        return torch.from_numpy(backwards[:, ::-1].copy())


class MemoryExperienceMaker(ExperienceMaker):
    """Turns rollouts into experiences with rewards shaped by the memory of past errors."""

    def __init__(
        self,
        *args: Any,
        strategy: Any,
        context: TrainerContext,
        rows_of: RowMaker = rows_of_layers,
        diversity: DiversityTracker | None = None,
        **kwargs: Any,
    ) -> None:
        threshold = context.meds.penalty.correct_threshold
        super().__init__(*args, strategy=_without_length_penalties(strategy), correct_threshold=threshold, **kwargs)
        self._length_args = strategy.args
        self._context = context
        self._rows_of = rows_of
        self._diversity = diversity

    @torch.no_grad()
    def make_step(self, rollout_samples: list[Experience], step: int) -> StepResult:
        """Do the work of OpenRLHF's ``make_experience_batch``, with rewards shaped by the memory."""
        experiences, recorded = self._run_models(rollout_samples)
        collected = self._collect(experiences, recorded, step)
        answer, judged = self._ask(collected, step)
        shaped = shape(collected, judged, self._context.meds.penalty)
        experiences = self._advantages(experiences, collected, judged, shaped)
        facts = StepFacts(
            raw_reward=collected.raw,
            shaped_reward=shaped,
            correct=judged.correct,
            group_size=self.args.rollout.n_samples_per_prompt,
            has_row=len(collected.remembered),
            recording_seconds=recorded.seconds,
            diversity=self._diversity_of(collected, answer),
        )
        metrics = {**metrics_of_policy(experiences, recorded), **step_metrics(facts, answer)}
        return StepResult(experiences, judged, metrics)

    def _collect(self, experiences: list[Experience], recorded: Recorded, step: int) -> Collected:
        """Put a step's rollouts into the order of the samples, and select those for the memory."""
        correct = self._verdicts(experiences)  # before length penalties change the rewards
        for experience in experiences:
            experience.rewards = experience.rewards.to(torch.promote_types(experience.rewards.dtype, torch.float32))
        apply_length_penalties(experiences, self._length_args)
        located, features = self._rows_of(experiences, recorded)
        finite = np.isfinite(features).all(axis=1)
        if broken := int((located & ~finite).sum()):
            of = f"{broken} of {located.sum()} responses"
            self._context.tell(f"step {step}: features of {of} are not finite (has the policy diverged?); left out")
        has_feature = np.asarray(located & finite)
        wanted = remembered_rows(correct, self._context.meds.memory.remember)
        return Collected(
            raw=values_in_order(experiences, [batch.rewards for batch in experiences]),
            correct=correct,
            keys=prompt_keys(experiences),
            features=features,
            has_feature=has_feature,
            remembered=np.flatnonzero(wanted & has_feature),
        )

    def _ask(self, collected: Collected, step: int) -> tuple[MemoryAnswer, Judged]:
        """Store the remembered rows in the memory, and return its answer and the clusters of all rollouts."""
        remembered, count = collected.remembered, len(collected.correct)
        keys, features = [collected.keys[sample] for sample in remembered], collected.features[remembered]
        rows = make_rows(remembered, keys, collected.correct[remembered], features)
        assert self._context.pool is not None
        answer = self._context.pool.observe(step, rows)
        label, size = np.full(count, UNASSIGNED, np.int32), np.zeros(count, np.int32)
        if self._context.meds.penalty.scope == "batch":
            transformed = self._context.transform(features)
            size[remembered] = sizes_in_batch(transformed, group_codes(rows)[0], self._context.meds.memory.method)
        else:
            label[remembered], size[remembered] = answer.label, answer.size
        return answer, Judged(collected.correct, label, size)

    def _advantages(
        self, experiences: list[Experience], collected: Collected, judged: Judged, shaped: NDArray[np.floating]
    ) -> list[Experience]:
        """Return experiences with advantages from the ``shaped`` rewards (n,); metrics keep the raw rewards.

        Relative to their group, penalties of others raise a wrong rollout. Its advantage is at most 0 for it, or what
        the raw rewards give it. The bonus of a seldom answer comes on top.
        """
        shaped = shaped.astype(collected.raw.dtype)
        trained = self._from_rewards(experiences, shaped)
        if not np.array_equal(shaped, collected.raw):
            _limit_wrong(trained, self._from_rewards(experiences, collected.raw), collected.correct)
        exploration = self._context.meds.exploration
        if weight := exploration.answer_bonus:
            bonus = answer_bonus(judged.cluster_size, weight=weight, baseline=exploration.answer_baseline)
            _add_to_advantages(trained, np.where(collected.has_feature, bonus, 0.0).astype(np.float32))
        for experience in trained:
            experience.rewards = torch.from_numpy(shaped[experience.index])
            experience.info["reward"] = torch.from_numpy(collected.raw[experience.index])
            experience.info["shaped_reward"] = experience.rewards.clone()
        return trained

    def _from_rewards(self, experiences: list[Experience], rewards: NDArray[Any]) -> list[Experience]:
        """Return copies of the experiences with OpenRLHF's advantages from ``rewards`` (n,), or those of pass@k."""
        k = self._context.meds.exploration.pass_at_k
        given = self._without_equal_groups(rewards) if k is None else np.zeros_like(rewards)
        copies = [copy.copy(experience) for experience in experiences]
        for experience in copies:
            experience.info = dict(experience.info)
            experience.rewards = torch.from_numpy(given[experience.index])
        self.compute_advantages_and_returns(copies)  # of these objects
        if k is not None:
            groups = self._in_groups(rewards)
            _add_to_advantages(copies, pass_at_k_advantages(groups, k).reshape(-1).astype(rewards.dtype))
            deviation = groups.std(axis=1, ddof=1).repeat(groups.shape[1])
            for experience in copies:
                experience.info["group_reward_std"] = torch.from_numpy(deviation[experience.index])
        return copies

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
        select, right = self._context.transform.select, collected.correct & collected.has_feature
        remembered = collected.features[collected.remembered]
        return self._diversity.add(select(remembered), select(collected.features[right]), answer.moments)


def shape(collected: Collected, judged: Judged, penalty: PenaltySettings) -> NDArray[np.float64]:
    """Return the shaped rewards (n,) of all samples of the step."""
    limits = {"alpha": penalty.alpha, "beta": penalty.beta}
    if penalty.scope == "batch":
        return collected.raw + rarity_bonus(judged.cluster_size, **limits)
    return shaped_reward(collected.raw, cluster_penalty(judged.cluster_size, **limits), judged.correct)


def metrics_of_policy(experiences: Sequence[Experience], recorded: Recorded) -> dict[str, float]:
    """Return the share of responses without an answer, which no penalty reaches, and the entropy of the policy.

    The mean of -log p over tokens that were drawn from p estimates the entropy of p, in nats per token, and needs no
    second pass over the vocabulary. It is without bias if nothing is filtered out, ``rollout.top_p`` is 1 and p drew
    the tokens itself.
    """
    total = sum(float((batch.action_log_probs * batch.action_mask).sum()) for batch in experiences)
    tokens = sum(int(batch.action_mask.sum()) for batch in experiences)
    unanswered = sum(answer is None for answer in recorded.answers) / len(recorded.answers)
    return {"rollout/unanswered_rate": unanswered, "policy_entropy": -total / max(tokens, 1)}


def _add_to_advantages(experiences: Sequence[Experience], added: NDArray[np.float32]) -> None:
    """Add a value of each sample (n,) to the advantages and returns of all its tokens."""
    for experience in experiences:
        values = torch.from_numpy(added[experience.index])
        tokens = values[:, None] * experience.action_mask
        experience.advantages = experience.advantages + tokens
        experience.returns = experience.returns + tokens
        experience.info["return"] = experience.info["return"] + values


def _limit_wrong(experiences: Sequence[Experience], unshaped: Sequence[Experience], correct: NDArray[np.bool_]) -> None:
    """Lower the advantages of wrong rollouts to 0, or to those of the ``unshaped`` experiences where they are above."""
    for experience, other in zip(experiences, unshaped, strict=True):
        limited = torch.minimum(experience.advantages, other.advantages.clamp(min=0))
        right = torch.from_numpy(correct[experience.index])[:, None]
        experience.advantages = torch.where(right, experience.advantages, limited)


def _without_length_penalties(strategy: Any) -> Any:
    """Return a copy of the strategy without length penalties, which `_collect` applies before the memory's penalty."""
    changed = copy.copy(strategy)
    changed.args = copy.copy(strategy.args)
    changed.args.reward = copy.copy(strategy.args.reward)
    changed.args.reward.overlong_buffer_len = None
    changed.args.reward.stop_properly_penalty_coef = None
    return changed


def sizes_in_batch(features: NDArray[np.float64], codes: NDArray[np.int64], method: Method) -> NDArray[np.int32]:
    """Return for each row the size (n,) int32 of its cluster, including the row itself; 1 for noise.

    Rows of ``features`` (n, d) with the same value in ``codes`` (n,) are clustered together. For training without a
    memory (meds.penalty.scope: batch).
    """
    order = np.argsort(codes, kind="stable")
    offsets = np.flatnonzero(np.diff(codes[order], prepend=-1, append=-1)) if len(codes) else np.zeros(1, np.int64)
    labels = np.empty(len(codes), np.int32)
    labels[order] = cluster_sets(features[order], offsets, method)
    _, cluster_of, counts = np.unique(np.stack([codes, labels]), axis=1, return_inverse=True, return_counts=True)
    return np.where(labels == NOISE, 1, counts[cluster_of.reshape(-1)]).astype(np.int32)
