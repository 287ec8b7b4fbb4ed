"""From rollouts to advantages: OpenRLHF's experience maker with a memory.

    run the models     OpenRLHF's forward passes, while the policy's ranks record layer logits
    collect            rewards, verdicts and recorded features, in the order of the samples
    ask                the memory for the cluster of each remembered rollout, and its size
    shape              rewards and OpenRLHF's advantages by these sizes, within the law (`shaping.law`)

The raw reward stays unchanged: dynamic filtering uses it earlier, and ``info["reward"]`` and all of OpenRLHF's metrics
keep it. The reward that the policy is trained on is ``info["shaped_reward"]``; without a memory it is the raw one.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from math import lcm
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from openrlhf.trainer.ppo_utils import experience_maker
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties

from meds_openrlhf.features.final_answer import answer_rows, same_answer_form
from meds_openrlhf.features.function import load_function
from meds_openrlhf.features.kind import transform_of
from meds_openrlhf.features.moments import DiversityTracker
from meds_openrlhf.memory.assignment import UNASSIGNED
from meds_openrlhf.memory.rows import make_rows, prompt_key, remembered_rows
from meds_openrlhf.memory.shard import MemoryAnswer
from meds_openrlhf.runtime.errors import RunLostError
from meds_openrlhf.shaping.law import shaped_advantages, without_equal_groups
from meds_openrlhf.shaping.method import Step
from meds_openrlhf.shaping.methods import methods_of
from meds_openrlhf.shaping.shuffled import shuffled
from meds_openrlhf.tracking.metrics import LARGEST_VLLM_KL, step_metrics
from meds_openrlhf.training.openrlhf.access import batching_of, ranks_of_roles, replaced
from meds_openrlhf.training.step.advantages import TokenAdvantages, discounted_sums
from meds_openrlhf.training.step.batches import even_batches, padded_batches
from meds_openrlhf.training.step.context import TrainerContext
from meds_openrlhf.training.step.policy import Recorded
from meds_openrlhf.training.step.samples import (
    GENERATED_TOKENS,
    IS_EXTRA,
    in_order,
    is_right,
    responses_of,
    values_in_order,
)


@dataclass(frozen=True)
class Collected:
    """A step's n rollouts in the order of the samples' index; the memory stores the ``remembered`` rollouts."""

    raw: NDArray[np.float32]  # (n,) rewards, after OpenRLHF's length penalties
    correct: NDArray[np.bool_]  # (n,)
    keys: list[str]  # (n) the memory's keys of the prompts
    features: NDArray[np.float32]  # (n, N) rows for the memory, such as layer logits
    has_feature: NDArray[np.bool_]  # (n,)
    remembered: NDArray[np.intp]  # (m,) indices of samples
    is_extra: NDArray[np.bool_]  # (n,) whether they are trained on beside the batch (meds.penalty.extras)


@dataclass(frozen=True)
class StepResult:
    """The result of a step: experiences to train on, and its n rollouts in the order of the samples' index."""

    experiences: list[Experience]
    collected: Collected
    label: NDArray[np.int32]  # (n,) clusters; UNASSIGNED without a label from the memory
    cluster_size: NDArray[np.int32]  # (n,) 0 without a cluster
    shaped: NDArray[np.floating]  # (n,) rewards
    metrics: dict[str, float]


class ExperienceMaker(experience_maker.RemoteExperienceMaker):  # type: ignore[misc]
    """Turns rollouts into experiences with rewards shaped by the memory of past errors, if the run has one.

    Avoids OpenRLHF's Python loops over samples and tokens; without a penalty the results are the same.
    """

    def __init__(self, *args: Any, context: TrainerContext, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.diversity = DiversityTracker() if context.feature.is_recorded else None
        self._context = context
        file = None if context.feature.is_recorded else context.meds.features.function
        self._function = None if file is None else load_function(file, layers=0, hidden=0)
        self._transform = transform_of(context.meds)
        self._methods = methods_of(context.meds)
        self._has_told_of_engines = False

    @torch.no_grad()
    def make_step(self, rollout_samples: list[Experience], step: int) -> StepResult:
        """Make a step's experiences from its rollouts; replaces OpenRLHF's ``make_experience_batch``."""
        experiences, recorded = self._run_models(rollout_samples)
        collected = self._collect(experiences, recorded, step)
        metrics = metrics_of_policy(
            experiences, recorded.answers, collected.correct, self.args.rollout.n_samples_per_prompt
        )
        self._compare_engines(metrics.get("vllm_kl", 0.0), step)
        if self.args.algo.advantage.is_correction_level == "off":  # then no update needs them
            for experience in experiences:
                experience.rollout_log_probs = None
        answer, label, size = self._ask(collected, step)
        trained, shaped, effect = self._advantages(experiences, collected, self._counted(collected, size, step))
        if answer is not None:
            rewards = collected.raw, shaped, collected.correct
            metrics |= step_metrics(answer, *rewards, effect, recorded.seconds) | self._eigen_ratios(collected, answer)
        return StepResult(trained, collected, label, size, shaped, metrics)

    def _run_models(self, rollout_samples: list[Experience]) -> tuple[list[Experience], Recorded]:
        """Run OpenRLHF's forward passes, and fetch from the policy's ranks what they recorded."""
        experiences = self.make_experience(self.split_rollout_samples(rollout_samples))
        ranks = ray.get(self.actor_model_group.async_run_method("take_recorded"))[:: batching_of(self.args).duplicates]
        batches: list[Recorded] = list(chain.from_iterable(ranks))  # each rank processed consecutive micro-batches
        recorded = Recorded(
            answers=in_order(experiences, [batch.answers for batch in batches]),
            located=values_in_order(experiences, [batch.located for batch in batches]),
            layer_logits=values_in_order(experiences, [batch.layer_logits for batch in batches]),
            seconds=sum(batch.seconds for batch in batches),
        )
        return experiences, recorded

    def _compare_engines(self, kl: float, step: int) -> None:
        """Tell once if engines and policy differ where they should not."""
        args = self.args
        has_one_policy = not args.train.async_enable and args.rollout.top_p == 1
        is_usual = abs(kl) <= LARGEST_VLLM_KL  # NaN is not
        if not is_usual and has_one_policy and not self._has_told_of_engines:
            self._context.tell(
                f"step {step}: engines and policy give the same tokens log-probs that differ by {kl:.3f} on average "
                f"(vllm_kl; usual: below {LARGEST_VLLM_KL}). Engines may have other weights, or compute this model in "
                "another way: see docs/metrics.md"
            )
            self._has_told_of_engines = True

    def split_rollout_samples(self, rollout_samples: list[Experience]) -> list[Experience]:
        """Number the samples, and join them into micro-batches.

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
            most_tokens = self.args.rollout.max_tokens_per_gpu * batching_of(self.args).duplicates
            return even_batches(lengths, most_tokens, lcm(*ranks_of_roles(self.args)))
        size = self.args.rollout.micro_batch_size
        return [np.arange(start, min(start + size, len(samples))) for start in range(0, len(samples), size)]

    def _collect(self, experiences: list[Experience], recorded: Recorded, step: int) -> Collected:
        """Put a step's rollouts into the order of the samples, and select those that the memory stores."""
        threshold = self._context.meds.penalty.correct_threshold
        # Judge before the length penalties, which change the rewards.
        correct = values_in_order(experiences, [is_right(batch, threshold) for batch in experiences])
        for experience in experiences:
            experience.rewards = experience.rewards.to(torch.promote_types(experience.rewards.dtype, torch.float32))
        apply_length_penalties(experiences, self.args)
        located, features = self._rows(experiences, recorded)
        finite = np.isfinite(features).all(axis=1)
        broken = int((located & ~finite).sum())
        if broken and self._context.meds.features.function is None:  # with a function, NaN means no feature
            of = f"features of {broken} of {located.sum()} responses"
            self._context.tell(f"step {step}: {of} are not finite and are not stored (has the policy diverged?)")
        has_feature = np.asarray(located & finite)
        wanted = remembered_rows(correct, self._context.meds.memory.remember)
        extra = [batch.info.pop(IS_EXTRA, torch.zeros(len(batch.index), dtype=torch.bool)) for batch in experiences]
        return Collected(
            raw=values_in_order(experiences, [batch.rewards for batch in experiences]),
            correct=correct,
            keys=[*map(cache(prompt_key), in_order(experiences, [batch.prompts for batch in experiences]))],
            features=features,
            has_feature=has_feature,
            remembered=np.flatnonzero(wanted & has_feature),
            is_extra=values_in_order(experiences, extra),
        )

    def _rows(self, experiences: list[Experience], recorded: Recorded) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return which rollouts have a row (n,), and the rows (n, d): what was recorded, or made of the texts."""
        feature = self._context.feature
        if feature.is_recorded or self._context.pool is None:
            return recorded.located, recorded.layer_logits
        if self._function is None:
            return np.array([answer is not None for answer in recorded.answers]), answer_rows(recorded.answers)
        prompts = in_order(experiences, [batch.prompts for batch in experiences])
        tokens = in_order(experiences, [[ids for ids, _ in responses_of(batch)] for batch in experiences])
        responses = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return np.ones(len(prompts), bool), self._function(len(prompts), prompts, responses)

    def _ask(self, collected: Collected, step: int) -> tuple[MemoryAnswer | None, NDArray[np.int32], NDArray[np.int32]]:
        """Store the remembered rows; return the memory's answer, and each rollout's label and cluster size (n,)."""
        remembered, count, pool = collected.remembered, len(collected.correct), self._context.pool
        label, size = np.full(count, UNASSIGNED, np.int32), np.zeros(count, np.int32)
        if pool is None:
            return None, label, size
        keys, features = [collected.keys[sample] for sample in remembered], collected.features[remembered]
        rows = make_rows(remembered, keys, collected.correct[remembered], features)
        answer = pool.observe(step, rows)
        label[remembered], size[remembered] = answer.label, answer.size
        return answer, label, size

    def _counted(self, collected: Collected, size: NDArray[np.int32], step: int) -> NDArray[np.integer]:
        """Return the cluster sizes (n,) that shape the step: those of the memory, or with ``shuffled`` exchanged."""
        if not self._context.meds.penalty.shuffled:
            return size
        rows = np.isin(np.arange(len(size)), collected.remembered)
        return shuffled(self._grouped(size), self._grouped(rows), [self.args.train.seed, step]).reshape(-1)

    def _grouped(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values (n,) of samples as (g, N): the N responses to a prompt are adjacent."""
        return values.reshape(-1, self.args.rollout.n_samples_per_prompt)

    def _advantages(
        self, experiences: list[Experience], collected: Collected, size: NDArray[np.integer]
    ) -> tuple[list[Experience], NDArray[np.float64], float]:
        """Return experiences with advantages, the shaped rewards (n,), and the memory's effect (`shaping.law`).

        Metrics keep the raw rewards.
        """
        step = Step(
            reward=self._grouped(collected.raw),
            correct=self._grouped(collected.correct),
            cluster_size=self._grouped(size),
            has_row=self._grouped(collected.has_feature),
            is_extra=self._grouped(collected.is_extra),
        )
        trained, groups, effect = shaped_advantages(step, self._methods, partial(self._estimate, experiences))
        shaped = groups.reshape(-1)
        trained_on = shaped.astype(collected.raw.dtype)
        for experience in trained.experiences:
            experience.rewards = torch.from_numpy(trained_on[experience.index])
            experience.info["reward"] = torch.from_numpy(collected.raw[experience.index])
            experience.info["shaped_reward"] = experience.rewards.clone()
        return trained.experiences, shaped, effect

    def _estimate(
        self, experiences: list[Experience], rewards: NDArray[np.floating], is_replaced: bool
    ) -> TokenAdvantages:
        """Return OpenRLHF's advantages from rewards (g, N); with ``is_replaced`` only terms such as a KL penalty."""
        given = without_equal_groups(rewards) if self.advantage_estimator == "group_norm" else rewards
        given = (np.zeros_like(rewards) if is_replaced else given).reshape(-1)
        copies = [copy.copy(experience) for experience in experiences]
        for experience in copies:
            experience.info = dict(experience.info)
            experience.rewards = torch.from_numpy(given[experience.index])
        with replaced(experience_maker, apply_length_penalties=lambda *_: None):  # `_collect` has applied them
            self.compute_advantages_and_returns(copies)  # sets advantages and returns in place
        if is_replaced:
            deviation = rewards.std(axis=1, ddof=1).repeat(rewards.shape[1])
            for experience in copies:
                experience.info["group_reward_std"] = torch.from_numpy(deviation[experience.index])
        return TokenAdvantages(copies, rewards.shape[1])

    def get_advantages_and_returns(
        self,
        values: torch.Tensor,
        rewards: torch.Tensor,
        action_mask: torch.Tensor | None,
        gamma: float,
        lambd: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return generalized advantages and returns (B, A) from a critic's values and rewards (B, A) (GAE).

        Called by OpenRLHF, whose loop over tokens this replaces.
        """
        if action_mask is not None:
            values, rewards = action_mask * values, action_mask * rewards
        later = torch.nn.functional.pad(values[:, 1:], (0, 1))
        advantages = discounted_sums((rewards + gamma * later - values).float(), gamma * lambd)
        return advantages, advantages + values

    def get_cumulative_returns(
        self, rewards: torch.Tensor, action_mask: torch.Tensor | None, gamma: float
    ) -> torch.Tensor:
        """Return the discounted sum (B, A) of each token's and all later rewards (B, A); called by OpenRLHF.

        It is ``returns[t] = rewards[t] + gamma * returns[t + 1]`` over generated tokens, in OpenRLHF's order.
        """
        return discounted_sums(rewards if action_mask is None else action_mask * rewards, gamma)

    def _eigen_ratios(self, collected: Collected, answer: MemoryAnswer) -> dict[str, float]:
        """Return the metrics of the layer logits of wrong and of right answers, if the memory has layer logits."""
        if self.diversity is None:
            return {}
        select, right = self._transform.select, collected.correct & collected.has_feature
        logits = select(collected.features[collected.remembered]), select(collected.features[right])
        prompts = collected.remembered // self.args.rollout.n_samples_per_prompt
        return self.diversity.add(*logits, stored=answer.moments, prompts=prompts)


def metrics_of_policy(
    experiences: Sequence[Experience], answers: Sequence[str | None], correct: NDArray[np.bool_], group: int
) -> dict[str, float]:
    """Return what a step's rollouts cost in tokens, their answers, and what policy and engines say of their tokens.

    ``answers`` (n) and ``correct`` (n,) are in the order of the samples, ``group`` responses to each prompt. No penalty
    reaches a response without an answer. The mean of -log p over tokens sampled from p estimates the entropy of p, in
    nats per token, without a second pass over the vocabulary. The estimate is unbiased if no response is filtered out,
    ``rollout.top_p`` is 1 and the tokens were sampled from p. ``vllm_kl`` is the mean of the engines' log-probs minus
    the policy's before the update, in nats per token.
    """
    total = sum(float((batch.action_log_probs * batch.action_mask).sum()) for batch in experiences)
    tokens = sum(int(batch.action_mask.sum()) for batch in experiences)
    generated = sum(float(batch.info.pop(GENERATED_TOKENS, torch.zeros(1)).sum()) for batch in experiences)
    form = cache(same_answer_form)
    wrong = [form(answer) if answer is not None and not right else None for answer, right in zip(answers, correct)]
    distinct = [len({*wrong[start : start + group]} - {None}) for start in range(0, len(wrong), group)]
    kl = {}
    if experiences[0].rollout_log_probs is not None:
        apart = [(batch.rollout_log_probs - batch.action_log_probs) * batch.action_mask for batch in experiences]
        kl = {"vllm_kl": sum(float(values.sum()) for values in apart) / max(tokens, 1)}
    return {
        **kl,
        "rollout/trained_tokens": float(tokens),
        "rollout/generated_tokens": float(round(generated)),
        "rollout/unanswered_rate": sum(answer is None for answer in answers) / len(answers),
        "rollout/distinct_wrong_answers": float(np.mean(distinct)),
        "policy_entropy": -total / max(tokens, 1),
    }
