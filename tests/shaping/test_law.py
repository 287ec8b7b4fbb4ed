"""The law: whatever the method, a wrong response never gains from the memory. All of it without a trainer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meds_openrlhf.config import MedsSettings, PenaltySettings
from meds_openrlhf.config.schema import ExplorationSettings, MemorySettings
from meds_openrlhf.shaping.focal import Focal
from meds_openrlhf.shaping.law import (
    ResponseAdvantages,
    capped,
    group_advantages,
    normalized,
    penalty_effect,
    shaped_advantages,
    without_equal_groups,
)
from meds_openrlhf.shaping.method import Advantages, Change, Method, Step
from meds_openrlhf.shaping.methods import methods_of
from meds_openrlhf.shaping.penalty import cluster_penalty, shaped_reward
from meds_openrlhf.shaping.right_weight import RightWeight


@dataclass
class OnePerResponse:
    """The advantages of a trainer that gives all tokens of a response the same."""

    values: np.ndarray  # (g, N)

    def outcomes(self) -> np.ndarray:
        return self.values

    def change(self, change: Change) -> None:
        self.values = self.values * change.factor + change.added

    def cap(self, unshaped: OnePerResponse, correct: np.ndarray) -> None:
        self.values = capped(self.values, unshaped.values, correct)


def by_group(rewards: np.ndarray, is_replaced: bool) -> OnePerResponse:
    groups = without_equal_groups(rewards * (not is_replaced))
    scale = groups.std(axis=1, ddof=1, keepdims=True) + 1e-9
    return OnePerResponse((groups - groups.mean(axis=1, keepdims=True)) / scale)


def by_batch(rewards: np.ndarray, is_replaced: bool) -> OnePerResponse:
    rewards = rewards * (not is_replaced)
    return OnePerResponse((rewards - rewards.mean()) / (rewards.std() + 1e-9))


class Generous(Method):
    """A method that would break the law: it rewards what is wrong."""

    def advantages(self, step: Step, rewards: np.ndarray, so_far: Advantages) -> Change:
        return Change(np.full(rewards.shape, -2.0), np.full(rewards.shape, 1.5))


class Counting(Method):
    """An estimator that would break the law: it pays for large clusters."""

    replaces_estimator = True

    def advantages(self, step: Step, rewards: np.ndarray, so_far: Advantages) -> Change:
        return Change(np.ones(rewards.shape), step.cluster_size.astype(float))


def settings_of(form: str = "reward", extras: int = 0, **exploration: float) -> MedsSettings:
    penalty = PenaltySettings(form=form, extras=extras, alpha=0.5, beta=3.0)
    memory = MemorySettings(preset="answers", remember="both") if "answer_bonus" in exploration else MemorySettings()
    return MedsSettings(run_dir="x", penalty=penalty, memory=memory, exploration=ExplorationSettings(**exploration))


METHODS = {
    "penalty": methods_of(settings_of()),
    "weights": methods_of(settings_of("weights", extras=1)),
    "extras": methods_of(settings_of(extras=1)),
    "pass@2": methods_of(settings_of(pass_at_k=2)),
    "pass@2 and weights": methods_of(settings_of("weights", pass_at_k=2)),
    "right weight": methods_of(settings_of(right_weight=0.1)),
    "focal": methods_of(settings_of(focal_gamma=2.0)),
    "generous": [*methods_of(settings_of()), Generous()],
    "generous alone": [Generous()],
    "counting": [Counting()],
}


@st.composite
def steps(draw) -> Step:
    groups, size = draw(st.integers(1, 4)), draw(st.integers(2, 6))
    count = groups * size
    correct = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count))).reshape(groups, size)
    lost = np.array(draw(st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=count, max_size=count)))
    sizes = np.array(draw(st.lists(st.integers(0, 900), min_size=count, max_size=count)))
    has_row = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    is_extra = ~correct.any(axis=1, keepdims=True) & np.full((groups, size), draw(st.booleans()))
    return Step(
        reward=(correct - lost.reshape(groups, size)).astype(np.float32), correct=correct, is_extra=is_extra,
        cluster_size=np.where(has_row, sizes, 0).reshape(groups, size), has_row=has_row.reshape(groups, size),
        success=np.full((groups, size), draw(st.floats(0, 1))),
    )  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("estimate", [by_group, by_batch])
@settings(deadline=None, max_examples=150)
@given(step=steps())
def test_a_wrong_response_never_gains_from_the_memory(method: str, estimate, step: Step) -> None:
    methods = METHODS[method]
    found, _, effect = shaped_advantages(step, methods, estimate)
    before = replace(step, cluster_size=np.zeros_like(step.cluster_size))
    without, _, _ = shaped_advantages(before, [each for each in methods if each.replaces_estimator], estimate)
    assert (found.values <= np.maximum(without.values, 0) + 1e-6)[~step.correct].all()
    assert 0 <= effect <= 1 + 1e-6


@settings(deadline=None)
@given(step=steps())
def test_the_answer_bonus_is_the_exception(step: Step) -> None:
    found, rewards, _ = shaped_advantages(step, methods_of(settings_of(answer_bonus=0.2)), by_group)
    without, same, _ = shaped_advantages(step, methods_of(settings_of()), by_group)
    bonus = np.where(step.has_row, 0.2 * (1 / np.sqrt(np.maximum(step.cluster_size, 1)) - 0.5), 0)
    np.testing.assert_allclose(found.values - without.values, bonus, atol=1e-6)
    np.testing.assert_array_equal(rewards, same)


@given(step=steps())
def test_without_methods_nothing_changes(step: Step) -> None:
    found, rewards, effect = shaped_advantages(step, [], by_group)
    counted = np.where(step.is_extra, np.float32(0), step.reward)
    np.testing.assert_array_equal(found.values, by_group(counted, False).values)
    np.testing.assert_array_equal(rewards, step.reward)
    assert effect == 0


def test_seven_repeated_mistakes_do_not_reward_the_eighth() -> None:
    """Seven in a cluster of 700: after normalization by the group the eighth would have 2.47."""
    correct = np.zeros(8, bool)
    shaped = shaped_reward(np.zeros(8), cluster_penalty(np.array([700] * 7 + [0]), alpha=0.1, beta=0.2), correct)
    unlimited = (shaped - shaped.mean()) / shaped.std(ddof=1)
    assert unlimited[7] == pytest.approx(2.47, abs=0.01)
    found = group_advantages(shaped, np.zeros(8), correct, group=8)
    np.testing.assert_allclose(found, [*unlimited[:7], 0.0], atol=1e-4)


@pytest.mark.parametrize("scale", [True, False])
@given(
    right=st.lists(st.booleans(), min_size=8, max_size=8), sizes=st.lists(st.integers(0, 900), min_size=8, max_size=8)
)
def test_group_advantages_keep_the_law(scale: bool, right: list[bool], sizes: list[int]) -> None:
    correct = np.array(right)
    shaped = shaped_reward(correct.astype(float), cluster_penalty(np.array(sizes), alpha=0.5, beta=3.0), correct)
    found = group_advantages(shaped, correct, correct, group=4, scale=scale)
    without = group_advantages(correct, correct, correct, group=4, scale=scale)
    assert (found <= np.maximum(without, 0))[~correct].all()
    groups = correct.reshape(2, 4).astype(float)
    centered = groups - groups.mean(axis=1, keepdims=True)
    divisor = groups.std(axis=1, ddof=1, keepdims=True) + 1e-6 if scale else 1
    np.testing.assert_allclose(without.reshape(2, 4), centered / divisor, atol=1e-9)


@pytest.mark.parametrize(("rewards", "group"), [([1.0, 0.0], 1), ([1.0, np.nan], 2), ([np.inf, 0.0], 2)])
def test_what_cannot_be_normalized_is_refused(rewards: list[float], group: int) -> None:
    with pytest.raises(ValueError, match=f"group={group}: must be at least 2, and all rewards finite"):
        group_advantages(rewards, rewards, [True, False], group)


@pytest.mark.parametrize("reward", [-0.2, -0.1, 0.1, 0.0])
def test_a_group_of_equal_rewards_has_none_left(reward: float) -> None:
    """In float32 the mean of sixteen times -0.2 is something else."""
    groups = np.array([[reward] * 16, [*[reward] * 15, 1.0]], np.float32)
    found = without_equal_groups(groups)
    assert found.dtype == np.float32
    assert (found[0] == 0).all()
    np.testing.assert_array_equal(found[1], groups[1])


def test_the_package_of_methods_needs_numpy_alone() -> None:
    """Pairs of methods combine, too, because none knows another."""
    folder = Path(__file__).parents[2] / "meds_openrlhf" / "shaping"
    assert not [path for path in folder.glob("*.py") if "import torch" in path.read_text()]
    step = Step(
        reward=np.eye(4, dtype=np.float32), correct=np.eye(4, dtype=bool), is_extra=np.zeros((4, 4), bool),
        cluster_size=np.arange(16).reshape(4, 4), has_row=np.ones((4, 4), bool), success=np.full((4, 4), 0.5),
    )  # fmt: skip
    for one, other in combinations(METHODS.values(), 2):
        found, _, _ = shaped_advantages(step, [*one, *other], by_group)
        assert np.isfinite(found.values).all()


def test_a_penalty_that_all_wrong_responses_get_alike_has_no_effect() -> None:
    raw = np.array([[1, 0, 0, 0], [0, 1, 1, 0]], dtype=np.float32)
    assert penalty_effect(raw, raw) == 0
    assert penalty_effect(raw, np.where(raw == 1, 1, -0.2)) == pytest.approx(0, abs=1e-12)


def test_the_effect_by_hand() -> None:
    """Mean rewards of right and wrong, 1 and -0.1, are on the line; -0.2 and 0 are 0.1 off it."""
    raw, shaped = np.array([[1.0, 1.0, 0.0, 0.0]]), np.array([[1.0, 1.0, 0.0, -0.2]])
    assert penalty_effect(raw, shaped) == pytest.approx(0.02 / (2 * 0.55**2 + 0.65**2 + 0.45**2))


def test_a_group_whose_raw_rewards_are_equal_learns_from_penalties_alone() -> None:
    equal, mixed = [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]
    assert penalty_effect(np.array([equal]), np.array([[0.0, -0.1, 0.0]])) == 1
    assert penalty_effect(np.array([equal, mixed]), np.array([[0.0, -0.1, 0.0], mixed])) == 0.5
    assert penalty_effect(np.array([equal, mixed]), np.array([equal, mixed])) == 0  # the first teaches nothing
    assert penalty_effect(np.array([equal]), np.array([equal])) == 0


def test_a_method_that_asks_no_memory_adds_nothing_to_the_memorys_effect() -> None:
    reward = np.array([[1.0, 0.5, 0.0, 0.0]])
    none = np.zeros((1, 4))
    step = Step(reward, reward > 0.4, none.astype(int), reward < 0.4, none.astype(bool), none)
    methods = [RightWeight(0.1), Focal()]
    _, _, effect = shaped_advantages(step, methods, lambda rewards, _: ResponseAdvantages(normalized(rewards)))
    assert effect == 0.0
