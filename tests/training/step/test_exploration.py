"""The advantages of other methods, in a step."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from meds_openrlhf.arithmetic.char_tokenizer import build_char_tokenizer
from meds_openrlhf.config.method import PRESETS
from meds_openrlhf.config.schema import ExplorationSettings
from meds_openrlhf.features.answer import AnswerLocator
from meds_openrlhf.features.final_answer import VALUES
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.shard import ShardSettings
from meds_openrlhf.training.step.experience import rows_of_answers
from tests.training.step.makers import SizesBySample, in_order_of_samples, memory_maker, use_pool
from tests.training.step.rollouts import (
    FakePolicyGroup,
    arguments,
    recorded_rollouts,
)

pytestmark = pytest.mark.usefixtures("ray_cluster")


def last_values(experiences: list[Experience], name: str) -> torch.Tensor:
    """A per-token field at each sample's last generated token (n,), in the order of the samples."""
    values = torch.empty(sum(len(experience.index) for experience in experiences))
    for experience in experiences:
        last = experience.action_mask.cumsum(1).argmax(1, keepdim=True)
        values[experience.index] = getattr(experience, name).gather(1, last)[:, 0]
    return values


def rewarded(rewards: list[float]) -> list[Experience]:
    samples = recorded_rollouts()
    for sample, reward in zip(samples, rewards):
        sample.rewards = torch.tensor([reward])
        sample.scores, sample.info = sample.rewards.clone(), {"reward": sample.rewards.clone()}
    return samples


ONE_RIGHT, TWO_RIGHT, ALL_WRONG = [0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0], [0.0] * 4


def test_pass_at_k_advantages_take_the_place_of_the_groups_mean_and_deviation(tmp_path: Path) -> None:
    maker, _ = memory_maker(arguments(), tmp_path, exploration=ExplorationSettings(pass_at_k=2), alpha=0.0)
    samples = rewarded([*ONE_RIGHT, *TWO_RIGHT, *ALL_WRONG])
    experiences = maker.make_step(samples, 1).experiences
    right, wrong = (1 / 6) / np.sqrt(5 / 36), (2 / 3 - 5 / 6) / np.sqrt(5 / 36)
    expected = torch.tensor([-1 / 3, 1, -1 / 3, -1 / 3, right, wrong, right, wrong, 0, 0, 0, 0]).float()
    for found in (last_values(experiences, "advantages"), last_values(experiences, "returns")):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(in_order_of_samples(experiences, "return"), expected, rtol=1e-5, atol=1e-9)
    deviations = torch.tensor([0.5] * 4 + [np.sqrt(1 / 3)] * 4 + [0.0] * 4).float()
    torch.testing.assert_close(in_order_of_samples(experiences, "group_reward_std"), deviations)
    for experience in experiences:  # all tokens of a response have its advantage
        mean = experience.advantages.sum(1) / experience.action_mask.sum(1)
        torch.testing.assert_close(experience.advantages, mean[:, None] * experience.action_mask)


def test_pass_at_k_sees_the_penalty(tmp_path: Path) -> None:
    """A group without a right answer has advantages of its penalties alone: 0.1 * ln(index + 1), at most 0.2.

    None of them is above 0.
    """
    maker, _ = memory_maker(arguments(), tmp_path, exploration=ExplorationSettings(pass_at_k=2))
    use_pool(maker, SizesBySample())
    experiences = maker.make_step(rewarded(ALL_WRONG * 3), 1).experiences
    rewards = -np.minimum(0.1 * np.log(np.arange(1, 5)), 0.2)  # of the first group, falling
    best = [rewards[0]] * 3 + [rewards[1]] * 2 + [rewards[2]]  # of its six pairs
    mean, deviation = np.mean(best), np.std(best) + 1e-6
    own = [rewards[0], (rewards[0] + 2 * rewards[1]) / 3, (rewards[0] + rewards[1] + rewards[2]) / 3]
    expected = [min((value - mean) / deviation, 0.0) for value in (*own, own[-1])]
    assert own[0] > mean
    np.testing.assert_allclose(last_values(experiences, "advantages")[:4], expected, rtol=1e-4)
    assert last_values(experiences, "advantages")[8:].abs().max() == 0  # all at the limit of the penalty


def boxed_rollouts(tokenizer: Any, answers: list[str | None], right: str) -> list[Experience]:
    """A rollout of each answer, four to a prompt."""
    samples = recorded_rollouts(prompts=len(answers) // 4)
    for sample, answer in zip(samples, answers):
        text = "no idea" if answer is None else f"it is \\boxed{{{answer}}}"
        ids = tokenizer.encode("2*(3)" + text, add_special_tokens=False)
        sample.sequences, sample.attention_mask = torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.long)
        sample.action_mask = torch.zeros(1, len(ids) - 1, dtype=torch.long)
        sample.action_mask[:, 4:] = 1
        sample.rewards = torch.tensor([float(answer == right)])
        sample.scores, sample.info = sample.rewards.clone(), {"reward": sample.rewards.clone()}
        sample.total_length = torch.tensor([float(len(ids))])
    return samples


@pytest.mark.parametrize("alpha", [0.0, 0.1])
def test_seldom_answers_gain_advantage_and_frequent_ones_lose_it(tmp_path: Path, alpha: float) -> None:
    """Right answers count too; with a penalty, equal answers lose reward as well."""
    tokenizer, answers = build_char_tokenizer(), ["6", "6", "7", None]
    settings = ShardSettings(
        layers=VALUES, transform=FeatureTransform("all", "none", "none"), method=PRESETS["answers"]
    )
    explore = ExplorationSettings(answer_bonus=0.2, answer_baseline=0.4)
    flags = {"rollout.batch_size": 1, "rollout.micro_batch_size": 4, "algo.advantage.estimator": "dr_grpo"}
    maker, _ = memory_maker(arguments(**flags), tmp_path, "both", settings, explore, alpha=alpha)
    maker._rows_of = rows_of_answers
    maker.actor_model_group = FakePolicyGroup(True, AnswerLocator(tokenizer))
    for step, (sixes, sevens) in enumerate([(0, 0), (2, 1), (4, 2)], 1):
        experiences = maker.make_step(boxed_rollouts(tokenizer, answers, right="6"), step).experiences
        six, seven = (0.2 * (min(1, 1 / np.sqrt(max(count, 1))) - 0.4) for count in (sixes, sevens))
        right, wrong = 1 / (1 + min(alpha * np.log(sixes + 1), 0.2)), -min(alpha * np.log(sevens + 1), 0.2)
        rewards = np.array([right, right, wrong, 0])
        expected = rewards - rewards.mean() + [six, six, seven, 0]
        np.testing.assert_allclose(last_values(experiences, "advantages"), expected, rtol=1e-5)
        np.testing.assert_allclose(in_order_of_samples(experiences, "return"), expected, rtol=1e-5)
        np.testing.assert_allclose(in_order_of_samples(experiences, "shaped_reward"), rewards, rtol=1e-6)
