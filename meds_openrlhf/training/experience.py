"""OpenRLHF's experience maker with a memory: features come back with the log-probs, penalties before the advantages.

The raw reward stays what it was: dynamic filtering saw it before, and ``info["reward"]`` and all of OpenRLHF's metrics
keep it. What the policy is trained on has its own name, ``info["shaped_reward"]``.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties

from meds_openrlhf.config.schema import PenaltySettings
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.assignment import UNASSIGNED
from meds_openrlhf.memory.clustering import Clustering, sizes_in_batch
from meds_openrlhf.memory.pool import MemoryPool, PoolAnswer
from meds_openrlhf.memory.rows import group_codes, layer_logits_of, make_rows, prompt_key
from meds_openrlhf.shaping.penalty import cluster_penalty, rarity_bonus, shaped_reward
from meds_openrlhf.tracking.diversity import DiversityTracker
from meds_openrlhf.tracking.metrics import StepFacts, step_metrics
from meds_openrlhf.training.actor import RecordedLogProbs
from meds_openrlhf.training.final_answers import FinalAnswers
from meds_openrlhf.training.rollout_sending import Judged

logger = logging.getLogger(__name__)


class MemoryExperienceMaker(RemoteExperienceMaker):
    """Turns rollouts into experience whose rewards are shaped by the memory of past errors.

    ``step`` is the number of the training step under way, set by the trainer; ``metrics`` and ``judged`` are those of
    the last step. ``remember``: whose rollouts are stored and lose reward, the "wrong" ones', the "right" ones' or
    "both". With ``answers`` the memory's rows are final answers; without, the layer logits that the policy records.
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
        key_of: Callable[[str], str] = prompt_key,
        answers: FinalAnswers | None = None,
        diversity: DiversityTracker | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, strategy=_without_length_penalties(strategy), **kwargs)
        self.step = 0
        self.metrics: dict[str, float] = {}
        self.judged: Judged
        self._length_args = strategy.args
        self._pool = pool
        self._transform = transform
        self._penalty = penalty
        self._remember = remember
        self._key_of = key_of
        self._clustering = clustering
        self._answers = answers
        self._diversity = diversity
        self._policy_refs: list[Any] | None = None
        self._layer_logits: list[NDArray[np.float32]] = []
        self._answered: list[NDArray[np.bool_]] = []
        self._recording_seconds = 0.0

    # ── layer logits come back next to the log-probs ──

    def _dispatch_forward(self, group: Any, sync_condition: Any, **kwargs: Any) -> list[Any]:
        references: list[Any] = super()._dispatch_forward(group, sync_condition, **kwargs)
        if group is self.actor_model_group:
            self._policy_refs = references
        return references

    def _flatten_results(self, refs: Any, duplicate_factor: int) -> list[Any]:
        results: list[Any] = super()._flatten_results(refs, duplicate_factor)
        if refs is not self._policy_refs or self._answers is not None:
            return results
        recorded: list[RecordedLogProbs] = results
        self._layer_logits = [one.layer_logits for one in recorded]
        self._answered = [one.answered for one in recorded]
        self._recording_seconds = sum(one.seconds for one in recorded)
        return [one.action_log_probs for one in recorded]

    # ── the penalty comes before the group's mean and deviation ──

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        """OpenRLHF's advantages, from rewards that the memory has shaped."""
        for experience in experiences:
            experience.rewards = experience.rewards.to(torch.promote_types(experience.rewards.dtype, torch.float32))
        scores = [_scores(experience) for experience in experiences]
        apply_length_penalties(experiences, self._length_args)
        raw = [experience.rewards.clone() for experience in experiences]
        self._shape_rewards(experiences, scores)
        shaped = [experience.rewards.clone() for experience in experiences]
        self._flatten_equal_groups(experiences)
        experiences = super().compute_advantages_and_returns(experiences)
        for experience, raw_rewards, shaped_rewards in zip(experiences, raw, shaped, strict=True):
            experience.rewards = shaped_rewards.clone()
            experience.info["reward"] = raw_rewards
            experience.info["shaped_reward"] = shaped_rewards
        return experiences

    def _shape_rewards(self, experiences: list[Experience], scores: list[torch.Tensor]) -> None:
        """Ask the memory about this step's rollouts and give them the rewards that it leaves them.

        Everything is put into the order of the samples' index and back: batches come in any order.
        """
        index = [sample for experience in experiences for sample in experience.index]
        place = np.argsort(index)  # position of sample 0, 1, ... in the concatenated micro-batches
        keys = [self._key_of(prompt) for experience in experiences for prompt in experience.prompts]
        answered, logits = self._rows_of(experiences)
        answered, logits = answered[place], logits[place]
        correct = torch.cat(scores).numpy()[place] >= self._penalty.correct_threshold
        has_feature = self._has_feature(answered, logits)
        remembered = np.flatnonzero(self._to_remember(correct) & has_feature)
        rows = make_rows(
            [int(sample) for sample in remembered],
            [keys[place[sample]] for sample in remembered],
            [bool(correct[sample]) for sample in remembered],
            logits[remembered],
        )
        raw = torch.cat([e.rewards for e in experiences]).numpy()[place]
        answer = self._pool.observe(self.step, rows)
        self.judged = self._judged(rows, remembered, answer, correct)
        shaped = self._shaped(raw)
        diversity = self._diversity_of(logits[remembered], logits[correct & has_feature], answer)
        facts = StepFacts(raw, shaped, correct, len(remembered), self._recording_seconds, diversity)
        self.metrics = step_metrics(facts, answer)
        for experience in experiences:
            experience.rewards = torch.as_tensor(shaped[experience.index], dtype=experience.rewards.dtype)

    def _flatten_equal_groups(self, experiences: list[Experience]) -> None:
        """Groups whose rewards are all the same get rewards of 0, where the group's mean is taken off anyway.

        In float32 the mean of sixteen times -0.2 is not quite -0.2, and OpenRLHF divides that difference by a deviation
        of 0 plus 1e-9: without this a group at the limit of the penalty gets advantages of 15 in place of none.
        """
        if self.advantage_estimator != "group_norm":
            return
        index = torch.tensor([sample for experience in experiences for sample in experience.index])
        rewards = torch.empty(len(index))
        rewards[index] = torch.cat([experience.rewards for experience in experiences]).to(rewards.dtype)
        groups = rewards.reshape(-1, self.args.rollout.n_samples_per_prompt)
        groups[groups.amax(1) == groups.amin(1)] = 0
        for experience in experiences:
            experience.rewards = rewards[experience.index].to(experience.rewards.dtype)

    def _rows_of(self, experiences: list[Experience]) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """For the samples in the order of the batches: whether there is an answer (n,), and the memory's row (n, N)."""
        if self._answers is not None:
            return self._answers.rows_of(experiences)
        return np.concatenate(self._answered), np.concatenate(self._layer_logits)

    def _judged(
        self, rows: pa.RecordBatch, remembered: NDArray[np.intp], answer: PoolAnswer, correct: NDArray[np.bool_]
    ) -> Judged:
        label, size = np.full(len(correct), UNASSIGNED, np.int32), np.zeros(len(correct), np.int32)
        if self._penalty.scope == "batch":
            features = self._transform(layer_logits_of(rows))
            size[remembered] = sizes_in_batch(features, group_codes(rows)[0], self._clustering)
        else:
            label[remembered], size[remembered] = answer.label, answer.size
        return Judged(correct, label, size)

    def _shaped(self, raw: NDArray[np.floating]) -> NDArray[np.float64]:
        """Shaped rewards (n,) of all samples of the step."""
        limits = {"alpha": self._penalty.alpha, "beta": self._penalty.beta}
        if self._penalty.scope == "batch":
            return raw + rarity_bonus(self.judged.cluster_size, **limits)
        return shaped_reward(raw, cluster_penalty(self.judged.cluster_size, **limits), self.judged.correct)

    def _diversity_of(
        self, remembered: NDArray[np.float32], right: NDArray[np.float32], answer: PoolAnswer
    ) -> dict[str, float]:
        """Metrics of the layer logits (k, N) that were remembered and of those (m, N) of right answers."""
        if self._diversity is None:
            return {}
        select = self._transform.select
        return self._diversity.add(select(remembered), select(right), answer.moments)

    def _to_remember(self, correct: NDArray[np.bool_]) -> NDArray[np.bool_]:
        if self._remember == "both":
            return np.ones_like(correct)
        return correct if self._remember == "right" else ~correct

    def _has_feature(self, answered: NDArray[np.bool_], logits: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Rows with an answer. One whose logits are infinite or NaN has no feature either, and is reported."""
        finite = np.isfinite(logits).all(axis=1)
        broken = int((answered & ~finite).sum())
        if broken:
            message = "step %d: layer logits of %d of %d answers are not finite (has the policy diverged?); left out"
            logger.warning(message, self.step, broken, int(answered.sum()))
        return np.asarray(answered & finite)


def _scores(experience: Experience) -> torch.Tensor:
    """What decides right or wrong: the verifier's score, or the reward where it gives no score."""
    return (experience.rewards if experience.scores is None else experience.scores).float()


def _without_length_penalties(strategy: Any) -> Any:
    """The strategy as the base class shall see it: length penalties are applied here, before ours, and only once."""
    changed = copy.copy(strategy)
    changed.args = copy.copy(strategy.args)
    changed.args.reward = copy.copy(strategy.args.reward)
    changed.args.reward.overlong_buffer_len = None
    changed.args.reward.stop_properly_penalty_coef = None
    return changed
