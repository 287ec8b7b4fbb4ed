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
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from math import lcm
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties

from meds_openrlhf.features.final_answer import answer_rows
from meds_openrlhf.features.kind import Kind, load_function, transform_of
from meds_openrlhf.features.moments import DiversityTracker
from meds_openrlhf.memory.metrics import step_metrics
from meds_openrlhf.memory.rows import prompt_key
from meds_openrlhf.memory.sets import UNASSIGNED
from meds_openrlhf.memory.shard import MemoryAnswer
from meds_openrlhf.memory.successes import count_visits
from meds_openrlhf.placement.batching import Batching, ranks_of_roles
from meds_openrlhf.rollouts.step import StepTable
from meds_openrlhf.shaping.law import shaped_advantages, without_equal_groups
from meds_openrlhf.shaping.methods import methods_of
from meds_openrlhf.shaping.shuffled import shuffled
from meds_openrlhf.step_log import LARGEST_VLLM_KL
from meds_openrlhf.training.step.advantages import Estimators, TokenAdvantages
from meds_openrlhf.training.step.batches import even_batches, padded_batches
from meds_openrlhf.training.step.context import TrainerContext
from meds_openrlhf.training.step.log import metrics_of_policy
from meds_openrlhf.training.step.policy import Recorded
from meds_openrlhf.training.step.samples import SampleOrder, is_right, responses_of


class StepResult(NamedTuple):
    """The result of a step: experiences to train on, its rollouts, and metrics."""

    experiences: list[Experience]
    rollouts: StepTable
    metrics: dict[str, float]


class ExperienceMaker(Estimators):
    """Turns rollouts into experiences with rewards shaped by the memory of past errors, if the run has one.

    Avoids OpenRLHF's Python loops over samples; without a penalty the results are the same.
    """

    def __init__(self, *args: Any, context: TrainerContext, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.strategy: Any = copy.copy(self.strategy)
        self.strategy.args = without_length_penalties(self.args)  # `_collect` applies them, to judge before
        self.diversity = DiversityTracker() if context.feature.is_recorded else None
        self._context = context
        file = context.meds.features.function if self._makes_rows else None
        self._function = None if file is None else load_function(file, layers=0, hidden=0)
        self._transform = transform_of(context.meds)
        self._methods = methods_of(context.meds)
        self._has_told_of_engines = False

    @torch.no_grad()
    def make_step(
        self,
        samples: list[Experience],
        step: int,
        generated: int = 0,
        extras: int = 0,
        dropped: Sequence[tuple[str, int, int]] = (),
    ) -> StepResult:
        """Make a step's experiences from its samples, of which the last ``extras`` were dropped by the filter.

        ``generated``: tokens that engines generated for the step. ``dropped``: the prompts of groups that are not
        trained on, with their right and all responses. Replaces OpenRLHF's ``make_experience_batch``.
        """
        experiences = self.make_experience(self.split_rollout_samples(samples))
        order = SampleOrder(experiences)
        recorded = self._take_recorded(order)
        is_extra = np.arange(len(samples)) >= len(samples) - extras
        rollouts = self._collect(experiences, order, recorded, is_extra, step)
        metrics = metrics_of_policy(experiences, rollouts, generated)
        self._compare_engines(metrics.get("vllm_kl", 0.0), step)
        if self.args.algo.advantage.is_correction_level == "off":  # then no update needs them
            for experience in experiences:
                experience.rollout_log_probs = None
        rollouts, answer = self._ask(rollouts, dropped)
        trained, rollouts, effect = self._shape(experiences, order, rollouts)
        if answer is not None:
            rewards = rollouts.reward, rollouts.shaped_reward, rollouts.correct
            metrics |= step_metrics(answer, *rewards, effect, recorded.seconds) | self._eigen_ratios(rollouts, answer)
            pull, was_solved = np.abs(trained.outcomes()), rollouts.grouped(rollouts.success) > 1 / 2
            metrics["rollout/pull_on_solved"] = float(pull[was_solved].sum() / (pull.sum() or 1.0))
        if self.args.algo.dynamic_filtering_enable:
            metrics["rollout/dropped_groups"] = float(len(dropped))
        return StepResult(trained.experiences, rollouts, metrics)

    def _take_recorded(self, order: SampleOrder) -> Recorded:
        """Fetch from the policy's ranks what they recorded during the forward passes."""
        ranks = ray.get(self.actor_model_group.async_run_method("take_recorded"))[:: Batching.of(self.args).duplicates]
        batches: list[Recorded] = list(chain.from_iterable(ranks))  # each rank processed consecutive micro-batches
        return Recorded(
            answers=order.items([batch.answers for batch in batches]),
            located=order.values([batch.located for batch in batches]),
            layer_logits=order.values([batch.layer_logits for batch in batches]),
            seconds=sum(batch.seconds for batch in batches),
        )

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
        """Number the samples, and join them into micro-batches."""
        for number, sample in enumerate(rollout_samples):
            sample.index = [number]
        return padded_batches(rollout_samples, self._micro_batches(rollout_samples), self.tokenizer.pad_token_id)

    def _micro_batches(self, samples: list[Experience]) -> list[NDArray[np.int64]]:
        if self.args.train.dynamic_batch_enable:
            lengths = np.array([sample.sequences.shape[1] for sample in samples])
            most_tokens = self.args.rollout.max_tokens_per_gpu * Batching.of(self.args).duplicates
            return even_batches(lengths, most_tokens, lcm(*ranks_of_roles(self.args)))
        size = self.args.rollout.micro_batch_size
        return [np.arange(start, min(start + size, len(samples))) for start in range(0, len(samples), size)]

    def _collect(
        self,
        experiences: list[Experience],
        order: SampleOrder,
        recorded: Recorded,
        is_extra: NDArray[np.bool_],
        step: int,
    ) -> StepTable:
        """Put a step's rollouts into the order of the samples."""
        threshold = self._context.meds.penalty.correct_threshold
        # Judge before the length penalties, which change the rewards.
        correct = order.values([is_right(batch, threshold) for batch in experiences])
        for experience in experiences:
            experience.rewards = experience.rewards.to(torch.promote_types(experience.rewards.dtype, torch.float32))
        apply_length_penalties(experiences, self.args)
        reward = order.values([batch.rewards for batch in experiences])
        prompts = order.items([batch.prompts for batch in experiences])
        responses = order.items(map(responses_of, experiences))
        has_row, row = self._rows(recorded, prompts, responses)
        finite = np.isfinite(row).all(axis=1)
        broken = int((has_row & ~finite).sum())
        if broken and self._context.meds.features.function is None:  # with a function, NaN means no feature
            of = f"features of {broken} of {has_row.sum()} responses"
            self._context.tell(f"step {step}: {of} are not finite and are not stored (has the policy diverged?)")
        labels = order.items([batch.labels for batch in experiences])
        return StepTable(
            step=step,
            group=self.args.rollout.n_samples_per_prompt,
            prompt=[*map(cache(prompt_key), prompts)],
            prompt_text=prompts,
            ground_truth=[None if label is None else str(label) or None for label in labels],
            answer=recorded.answers,
            token_ids=np.concatenate([ids for ids, _ in responses]),
            tokens=np.array([len(ids) for ids, _ in responses]),
            generated=np.concatenate([generated for _, generated in responses]),
            truncated=order.values([batch.truncated.bool() for batch in experiences]),
            is_extra=is_extra,
            correct=correct,
            reward=reward,
            row=row,
            has_row=np.asarray(has_row & finite),
            label=np.full(len(prompts), UNASSIGNED, np.int32),
            cluster_size=np.zeros(len(prompts), np.int32),
            success=np.zeros(len(prompts)),
            shaped_reward=reward,
        )

    @property
    def _makes_rows(self) -> bool:
        """Whether the memory's rows are made here, of the texts; without a memory there are none to make."""
        return self._context.pool is not None and not self._context.feature.is_recorded

    def _rows(
        self, recorded: Recorded, prompts: list[str], responses: list[tuple[NDArray[np.int32], NDArray[np.bool_]]]
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return which rollouts have a row (n,), and the rows (n, d): what was recorded, or made of the texts."""
        if not self._makes_rows:
            return recorded.located, recorded.layer_logits
        if self._context.feature.kind is Kind.ANSWERS:
            return np.array([answer is not None for answer in recorded.answers]), answer_rows(recorded.answers)
        texts = self.tokenizer.batch_decode([tokens for tokens, _ in responses], skip_special_tokens=True)
        assert self._function is not None  # the only other kind
        return np.ones(len(prompts), bool), self._function(len(prompts), prompts, texts)

    def _ask(
        self, rollouts: StepTable, dropped: Sequence[tuple[str, int, int]]
    ) -> tuple[StepTable, MemoryAnswer | None]:
        """Store the remembered rows and all counts; return the rollouts with their clusters, and the memory's answer.

        Rollouts get the success that the memory remembers of their prompt, 0 on a first visit.
        """
        if self._context.pool is None:
            return rollouts, None
        samples = rollouts.remembered(self._context.meds.memory.remember)
        of_dropped = ((prompt_key(prompt), right, size) for prompt, right, size in dropped)
        counts = count_visits(chain(rollouts.groups(), of_dropped))
        answer = self._context.pool.observe(rollouts.step, rollouts.rows(samples), counts)
        label, size = rollouts.label.copy(), rollouts.cluster_size.copy()
        label[samples], size[samples] = answer.label, answer.size
        success = np.array([answer.visits[prompt].success or 0.0 for prompt in rollouts.prompt])
        return replace(rollouts, label=label, cluster_size=size, success=success), answer

    def _shape(
        self, experiences: list[Experience], order: SampleOrder, rollouts: StepTable
    ) -> tuple[TokenAdvantages, StepTable, float]:
        """Return the advantages in their experiences, the rollouts with shaped rewards, and the memory's effect.

        Metrics keep the raw rewards.
        """
        meds = self._context.meds
        sizes: NDArray[np.integer] = rollouts.cluster_size
        if meds.penalty.shuffled:
            is_remembered = np.isin(rollouts.sample, rollouts.remembered(meds.memory.remember))
            seed = [self.args.train.seed, rollouts.step]
            sizes = shuffled(rollouts.grouped(sizes), rollouts.grouped(is_remembered), seed).reshape(-1)
        estimate = partial(self._estimate, experiences, order)
        trained, groups, effect = shaped_advantages(rollouts.for_methods(sizes), self._methods, estimate)
        shaped = groups.reshape(-1)
        trained_on = shaped.astype(rollouts.reward.dtype)
        for experience in trained.experiences:
            experience.rewards = torch.from_numpy(trained_on[experience.index])
            experience.info["reward"] = torch.from_numpy(rollouts.reward[experience.index])
            experience.info["shaped_reward"] = experience.rewards.clone()
        return trained, replace(rollouts, shaped_reward=shaped), effect

    def _estimate(
        self, experiences: list[Experience], order: SampleOrder, rewards: NDArray[np.floating], is_replaced: bool
    ) -> TokenAdvantages:
        """Return OpenRLHF's advantages from rewards (g, N); with ``is_replaced`` only terms such as a KL penalty."""
        given = without_equal_groups(rewards) if self.advantage_estimator == "group_norm" else rewards
        given = (np.zeros_like(rewards) if is_replaced else given).reshape(-1)
        copies = [copy.copy(experience) for experience in experiences]
        for experience in copies:
            experience.info = dict(experience.info)
            experience.rewards = torch.from_numpy(given[experience.index])
        self.compute_advantages_and_returns(copies)  # sets advantages and returns in place
        if is_replaced:
            deviation = rewards.std(axis=1, ddof=1).repeat(rewards.shape[1])
            for experience in copies:
                experience.info["group_reward_std"] = torch.from_numpy(deviation[experience.index])
        return TokenAdvantages(copies, order, rewards.shape[1])

    def _eigen_ratios(self, rollouts: StepTable, answer: MemoryAnswer) -> dict[str, float]:
        """Return the metrics of the rows of wrong and of right answers, if the policy records them."""
        if self.diversity is None:
            return {}
        remembered, right = rollouts.remembered(self._context.meds.memory.remember), rollouts.correct & rollouts.has_row
        logits = self._transform.select(rollouts.row[remembered]), self._transform.select(rollouts.row[right])
        return self.diversity.add(*logits, stored=answer.moments, prompts=remembered // rollouts.group)


def without_length_penalties(args: Any) -> Any:
    """Return a copy of OpenRLHF's arguments, with which it subtracts no length penalty from rewards a second time."""
    changed, changed.reward = copy.copy(args), copy.copy(args.reward)
    changed.reward.overlong_buffer_len = changed.reward.stop_properly_penalty_coef = None
    return changed
