"""Advantages from shaped rewards: every estimator's, limited for wrong answers, and those of other methods."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.experience import Experience

from meds_openrlhf.config.method import PRESETS
from meds_openrlhf.config.schema import ExplorationSettings
from meds_openrlhf.features.final_answer import VALUES
from meds_openrlhf.features.kind import Kind
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.shard import ShardSettings
from meds_openrlhf.shaping.method import Change
from meds_openrlhf.training.step.advantages import TokenAdvantages
from tests.training.step.rollouts import (
    LAYERS,
    NOT_RECORDED,
    FakePolicyGroup,
    arguments,
    by_sample,
    memory_maker,
    our_maker,
    plain_maker,
    recorded_rollouts,
    set_texts,
    use_sizes,
)

pytestmark = pytest.mark.usefixtures("ray_cluster")

ESTIMATORS = ("gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo", "flash_reinforce")
ONE_RIGHT, TWO_RIGHT, ALL_WRONG = [0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0], [0.0] * 4
NEARLY_RIGHT = [0.0, 0.4, 0.0, 0.2]
OURS, OPENRLHFS = our_maker(arguments()), plain_maker(arguments())


@given(
    seed=st.integers(0, 999), rows=st.integers(1, 4), length=st.integers(1, 40),
    gamma=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.0]), dense=st.booleans(),
    mask_type=st.sampled_from([None, torch.long, torch.bool]),
)  # fmt: skip
def test_returns_are_openrlhfs_to_the_last_bit(
    seed: int, rows: int, length: int, gamma: float, dense: bool, mask_type: torch.dtype | None
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(rows, length, generator=generator)
    mask = torch.randint(0, 2, (rows, length), generator=generator)
    if not dense:
        rewards[:, :-1] = 0.0
    mask = None if mask_type is None else mask.to(mask_type)
    found = OURS.get_cumulative_returns(rewards, mask, gamma)
    assert torch.equal(found, OPENRLHFS.get_cumulative_returns(rewards, mask, gamma))


@given(
    seed=st.integers(0, 999), rows=st.integers(1, 4), length=st.integers(1, 60),
    gamma=st.sampled_from([1.0, 0.99, 0.5]), lambd=st.sampled_from([1.0, 0.95, 0.0]),
    mask_type=st.sampled_from([None, torch.long, torch.bool]), kind=st.sampled_from([torch.float32, torch.bfloat16]),
)  # fmt: skip
def test_generalized_advantages_are_openrlhfs_but_for_the_order_of_sums(
    seed: int, rows: int, length: int, gamma: float, lambd: float, mask_type: torch.dtype | None, kind: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    values, rewards = (torch.randn(rows, length, generator=generator) for _ in range(2))
    mask = None if mask_type is None else torch.randint(0, 2, (rows, length), generator=generator).to(mask_type)
    given = values.to(kind), rewards, mask, gamma, lambd
    found, wanted = OURS.get_advantages_and_returns(*given), OPENRLHFS.get_advantages_and_returns(*given)
    for ours, theirs in zip(found, wanted):
        assert ours.dtype == theirs.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=4e-6, atol=4e-6)


@pytest.mark.parametrize("reward", [-0.2, -0.1, 0.1, 0.0])
def test_a_group_of_equal_rewards_has_no_advantage(tmp_path: Path, reward: float) -> None:
    """In float32 the mean of sixteen times -0.2 is something else, which OpenRLHF divides by 1e-9."""
    flags = {"rollout.batch_size": 3, "rollout.n_samples_per_prompt": 16}
    maker, _ = memory_maker(arguments(**flags), tmp_path, alpha=0.0)
    samples = recorded_rollouts(prompts=3, responses=16)
    for sample in samples[16:32]:
        sample.rewards = torch.tensor([reward])
    experiences = maker.make_step(samples, 1).experiences
    equal = [16 <= sample < 32 for sample in range(48)]
    assert (by_sample(experiences, "advantages") == 0).tolist() == equal
    for name in ("rewards", "shaped_reward"):
        assert by_sample(experiences, name)[16:32].tolist() == pytest.approx([reward] * 16)


@pytest.mark.parametrize(
    ("estimator", "responses"),
    [*((name, 4) for name in ESTIMATORS[:-1]), *((name, 1) for name in ("gae", "reinforce", "flash_reinforce"))],
)
def test_every_estimator_trains_on_the_shaped_rewards(tmp_path: Path, estimator: str, responses: int) -> None:
    """The advantages are OpenRLHF's for rewards less the penalty of repeated mistakes, limited for wrong rollouts."""
    sizes = {"prompts": 12 // responses, "responses": responses}
    flags = {"algo.advantage.estimator": estimator, "rollout.n_samples_per_prompt": responses}
    args = arguments(**flags, **{"rollout.batch_size": sizes["prompts"]})
    settings = ShardSettings(layers=LAYERS, method=PRESETS["robust"])
    maker, pool = memory_maker(args, tmp_path, settings=settings)
    for step in (1, 2, 3, 4):
        result = maker.make_step(recorded_rollouts(**sizes), step)
    shaped, raw = (by_sample(result.experiences, name) for name in ("shaped_reward", "reward"))
    wrong = raw == 0
    if responses == 1:  # three earlier visits with the same mistake
        torch.testing.assert_close(shaped, torch.where(wrong, -0.1 * np.log(4), raw.double()).float())
        assert pool.shard.stats().rows == 4 * wrong.sum()
    assert (shaped[wrong] < 0).any()
    stats = pool.shard.stats()
    assert (result.metrics["meds/rows"], result.metrics["meds/clusters"]) == (stats.rows, stats.clusters)
    unshaped = plain_maker(args).make_experience_batch(recorded_rollouts(**sizes))
    expected = plain_maker(args).make_experience_batch(recorded_rollouts(**sizes, rewards=shaped.tolist()))
    for found, one, other in zip(result.experiences, expected, unshaped):
        limited = torch.minimum(one.advantages, other.advantages.clamp(min=0))
        advantages = torch.where(wrong[found.index][:, None], limited, one.advantages)
        torch.testing.assert_close(found.advantages, advantages)
        assert ("group_reward_std" in found.info) == (responses > 1)
    assert max(found.advantages.abs().max() for found in result.experiences) > 0.1
    assert result.metrics["meds/penalty_mean"] == pytest.approx((raw - shaped).mean().item(), abs=1e-6)


@pytest.mark.parametrize(
    ("estimator", "pass_at_k"), [*((estimator, None) for estimator in ESTIMATORS), ("group_norm", 2)]
)
@settings(max_examples=40)
@given(
    right=st.lists(st.booleans(), min_size=12, max_size=12),
    sizes=st.lists(st.integers(0, 40), min_size=12, max_size=12),
    alpha=st.sampled_from([0.1, 1.0]),
)
def test_a_wrong_answer_never_gains_from_the_memory(
    tmp_path_factory: pytest.TempPathFactory,
    estimator: str, pass_at_k: int | None, right: list[bool], sizes: list[int], alpha: float,
) -> None:  # fmt: skip
    """Whatever its group: an advantage above 0 is one that it has without the memory as well."""

    def made(alpha: float) -> list[Experience]:
        args = arguments(**{"algo.advantage.estimator": estimator})
        explore = ExplorationSettings(pass_at_k=pass_at_k)
        folder = tmp_path_factory.mktemp("memory")
        maker, _ = memory_maker(args, folder, exploration=explore, alpha=alpha, beta=100.0)
        use_sizes(maker, sizes)
        return maker.make_step(recorded_rollouts(rewards=right), 1).experiences

    for found, without in zip(made(alpha), made(0.0)):
        for row, sample in enumerate(found.index):
            if not right[sample]:
                assert (found.advantages[row] <= without.advantages[row].clamp(min=0) + 1e-6).all()


@pytest.mark.parametrize("estimator", ["group_norm", "dr_grpo", "rloo"])
@pytest.mark.parametrize("flags", [{}, {"reward.overlong_buffer_len": 4.0, "rollout.max_new_tokens": 10}])
def test_weights_divide_a_groups_pressure_by_the_sizes_of_clusters(tmp_path: Path, estimator: str, flags: dict) -> None:
    """On a first visit nothing changes, to the last bit; later the sum of a group's advantages stays."""
    args = arguments(**{"algo.advantage.estimator": estimator, **flags})
    rewards = [*ONE_RIGHT, *TWO_RIGHT, 1.0, 0.0, 0.0, 1.0]
    dapo = plain_maker(args).make_experience_batch(recorded_rollouts(rewards=rewards))
    maker, _ = memory_maker(args, tmp_path, form="weights")
    use_sizes(maker, [0] * 12)
    first = maker.make_step(recorded_rollouts(rewards=rewards), 1)
    assert first.metrics["meds/penalty_effect"] == 0
    use_sizes(maker, [11, 900, 5, 2, 9, 3, 9, 3, 7, 0, 8, 7])
    later = maker.make_step(recorded_rollouts(rewards=rewards), 2)
    for name in ("advantages", "returns", "return"):
        before, same, found = (by_sample(batches, name) for batches in (dapo, first.experiences, later.experiences))
        assert torch.equal(same, before)
        torch.testing.assert_close(found.view(3, 4).sum(1), before.view(3, 4).sum(1), atol=1e-5, rtol=1e-5)
        assert torch.equal(found[4:8], before[4:8])  # equal sizes
        ratios = (found / before)[[0, 2, 3, 9, 10]]
        if not flags:
            torch.testing.assert_close(ratios, torch.tensor([12 / 7, 6 / 7, 3 / 7, 2 * 0.25 / 2.05, 2 * 1.8 / 2.05]))
        assert (ratios[before[[0, 2, 3, 9, 10]] != 0] > 0).all()
    assert 0.01 < later.metrics["meds/penalty_effect"] == pytest.approx(later.metrics["meds/penalty_amplitude"] ** 2)
    assert later.metrics["meds/penalty_mean"] == 0  # rewards stay what they were


@pytest.mark.parametrize("form", ["weights", "reward"])
@pytest.mark.parametrize("kept", [ONE_RIGHT, NEARLY_RIGHT], ids=["one right", "nearly right"])
def test_extras_have_bounded_advantages_and_change_no_others(tmp_path: Path, form: str, kept: list[float]) -> None:
    """A group that dynamic filtering keeps is no extra, even if none of its responses is right."""
    args = arguments(
        **{"reward.overlong_buffer_len": 4.0, "rollout.max_new_tokens": 10}
    )  # rewards of the extras differ
    rewards, sizes = [*kept, *ALL_WRONG, *ALL_WRONG], [0] * 4 + [0, 0, 0, 4] + [1] * 4
    dapo = plain_maker(args).make_experience_batch(recorded_rollouts(rewards=rewards))
    maker, _ = memory_maker(args, tmp_path, form=form, extras=2, alpha=0.0)
    use_sizes(maker, sizes)
    experiences = maker.make_step(recorded_rollouts(rewards=rewards), 1, extras=8).experiences
    found, before = by_sample(experiences, "advantages"), by_sample(dapo, "advantages")
    assert torch.equal(found[:4], before[:4])
    weights = [0.5, 0.5, 0.5, 2.5] if form == "weights" else [1.0] * 4
    torch.testing.assert_close(found[4:], -0.25 * torch.tensor([*weights, 1, 1, 1, 1]))
    torch.testing.assert_close(by_sample(experiences, "reward"), by_sample(dapo, "reward"))


def test_shuffled_sizes_are_others_of_the_same_group(tmp_path: Path) -> None:
    rewards, sizes = [*ONE_RIGHT, *TWO_RIGHT, *ALL_WRONG], [1, 50, 2, 3, 0, 5, 0, 6, 7, 8, 9, 10]
    maker, _ = memory_maker(arguments(), tmp_path, alpha=1.0, beta=100.0, shuffled=True)
    use_sizes(maker, sizes)
    found = []
    for step in (1, 2, 2):
        result = maker.make_step(recorded_rollouts(rewards=rewards), step)
        assert result.rollouts.cluster_size.tolist() == [0 if right else size for right, size in zip(rewards, sizes)]
        penalties = by_sample(result.experiences, "reward") - by_sample(result.experiences, "shaped_reward")
        found.append(np.rint(np.expm1(penalties.double().numpy())).astype(int).tolist())
    for each in found:
        assert [sorted(each[start : start + 4]) for start in (0, 4, 8)] == [[0, 1, 2, 3], [0, 0, 5, 6], [7, 8, 9, 10]]
    assert found[1] == found[2] != found[0]


def test_pass_at_k_advantages_take_the_place_of_the_groups_mean_and_deviation(tmp_path: Path) -> None:
    maker, _ = memory_maker(arguments(), tmp_path, exploration=ExplorationSettings(pass_at_k=2), alpha=0.0)
    samples = recorded_rollouts(rewards=[*ONE_RIGHT, *TWO_RIGHT, *ALL_WRONG])
    experiences = maker.make_step(samples, 1).experiences
    right, wrong = (1 / 6) / np.sqrt(5 / 36), (2 / 3 - 5 / 6) / np.sqrt(5 / 36)
    expected = torch.tensor([-1 / 3, 1, -1 / 3, -1 / 3, right, wrong, right, wrong, 0, 0, 0, 0]).float()
    for name in ("advantages", "returns", "return"):
        torch.testing.assert_close(by_sample(experiences, name), expected, rtol=1e-5, atol=1e-9)
    deviations = torch.tensor([0.5] * 4 + [np.sqrt(1 / 3)] * 4 + [0.0] * 4).float()
    torch.testing.assert_close(by_sample(experiences, "group_reward_std"), deviations)
    for experience in experiences:  # all tokens of a response have its advantage
        mean = experience.advantages.sum(1) / experience.action_mask.sum(1)
        torch.testing.assert_close(experience.advantages, mean[:, None] * experience.action_mask)


def test_pass_at_k_sees_the_penalty(tmp_path: Path) -> None:
    """A group without a right answer has advantages of its penalties alone, and none above 0."""
    maker, _ = memory_maker(arguments(), tmp_path, exploration=ExplorationSettings(pass_at_k=2))
    use_sizes(maker, range(12))
    found = by_sample(maker.make_step(recorded_rollouts(rewards=ALL_WRONG * 3), 1).experiences, "advantages")
    assert found[0] == 0  # the least penalized
    assert (found[1:4].diff() <= 0).all()
    assert found[3] < -0.4
    assert found[8:].abs().max() == 0  # all at the limit of the penalty


@pytest.mark.parametrize("alpha", [0.0, 0.1])
def test_seldom_answers_gain_advantage_and_frequent_ones_lose_it(tmp_path: Path, alpha: float) -> None:
    """Right answers count too; with a penalty, equal answers lose reward as well."""
    transform = FeatureTransform("all", "none", "none")
    settings = ShardSettings(layers=VALUES, transform=transform, method=PRESETS["answers"])
    explore = ExplorationSettings(answer_bonus=0.2, answer_baseline=0.4)
    flags = {"rollout.batch_size": 1, "rollout.micro_batch_size": 4, "algo.advantage.estimator": "dr_grpo"}
    maker, _ = memory_maker(arguments(**flags), tmp_path, "both", settings, explore, alpha=alpha)
    maker._context = replace(maker._context, feature=replace(NOT_RECORDED, kind=Kind.ANSWERS))
    maker.actor_model_group = FakePolicyGroup(texts=True)
    for step, (sixes, sevens) in enumerate([(0, 0), (2, 1), (4, 2)], 1):
        samples = recorded_rollouts(prompts=1, rewards=[1, 1, 0, 0])
        for sample, text in zip(samples, ["it is \\boxed{6}", "it is \\boxed{6}", "it is \\boxed{7}", "no idea"]):
            set_texts(sample, "2*(3)", text)
        experiences = maker.make_step(samples, step).experiences
        six, seven = (0.2 * (min(1, 1 / np.sqrt(max(count, 1))) - 0.4) for count in (sixes, sevens))
        right, wrong = 1 / (1 + min(alpha * np.log(sixes + 1), 0.2)), -min(alpha * np.log(sevens + 1), 0.2)
        rewards = np.array([right, right, wrong, 0])
        expected = rewards - rewards.mean() + [six, six, seven, 0]
        np.testing.assert_allclose(by_sample(experiences, "advantages"), expected, rtol=1e-5)
        np.testing.assert_allclose(by_sample(experiences, "return"), expected, rtol=1e-5)
        np.testing.assert_allclose(by_sample(experiences, "shaped_reward"), rewards, rtol=1e-6)


@pytest.mark.parametrize("has_critic", [False, True])
def test_returns_change_with_advantages_unless_a_critic_learns_them(has_critic: bool) -> None:
    ones = torch.ones(2, 3)
    experience = Experience(
        index=[0, 1], advantages=ones, returns=ones, values=torch.zeros(2, 3) if has_critic else None,
        action_mask=torch.tensor([[1, 1, 0], [1, 1, 1]]), info={"return": torch.ones(2)},
    )  # fmt: skip
    TokenAdvantages([experience], None, group=2).change(Change(np.array([[0.5, 0.0]]), np.array([[0.0, 2.0]])))
    changed = [[0.5, 0.5, 0.5], [2.0, 2.0, 2.0]]
    assert experience.advantages.tolist() == changed
    assert experience.returns.tolist() == (ones.tolist() if has_critic else changed)
    assert experience.info["return"].tolist() == ([1.0, 1.0] if has_critic else [0.5, 2.0])
