"""Experience from the same recorded rollouts: OpenRLHF's own where nothing is taken, the penalty where it is due."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from openrlhf.models import PolicyLoss
from openrlhf.trainer.ppo_utils.experience import Experience

from meds_openrlhf.arithmetic.char_tokenizer import build_char_tokenizer
from meds_openrlhf.config.method import PRESETS
from meds_openrlhf.config.schema import ExplorationSettings
from meds_openrlhf.features.answer import AnswerLocator
from meds_openrlhf.features.moments import NO_MOMENTS
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory import rows as memory_rows
from meds_openrlhf.memory.shard import MemoryAnswer, ShardSettings, ShardStats
from meds_openrlhf.runtime.errors import RunLostError
from meds_openrlhf.shaping.batch_clusters import sizes_in_batch
from meds_openrlhf.shaping.penalty import penalty_effect
from meds_openrlhf.training.step.experience import (
    ExperienceMaker,
    Recorded,
    StepResult,
    metrics_of_policy,
    rows_of_answers,
)
from tests.training.step.makers import (
    SizesBySample,
    in_order_of_samples,
    memory_maker,
    our_maker,
    plain_maker,
    use_pool,
)
from tests.training.step.rollouts import (
    LAYERS,
    NO_ANSWER,
    FakePolicyGroup,
    arguments,
    layer_logits_of,
    recorded_rollouts,
)

TOKENIZER_OF_CHARACTERS = build_char_tokenizer()

pytestmark = pytest.mark.usefixtures("ray_cluster")


def test_the_policys_entropy_is_estimated_from_the_tokens_that_it_drew() -> None:
    torch.manual_seed(0)
    policy = torch.distributions.Categorical(logits=2 * torch.randn(50))
    drawn = policy.log_prob(policy.sample((40, 1000)))
    mask = torch.rand(40, 1000) < 0.7
    drawn[~mask] = -99.0  # replies of tools
    batches = [Experience(action_log_probs=drawn[rows], action_mask=mask[rows]) for rows in (slice(0, 3), slice(3, 40))]
    metrics = metrics_of_policy(batches, Recorded(["7", None], np.ones(2, bool), np.empty((2, 0)), seconds=0.0))
    assert metrics["policy_entropy"] == pytest.approx(policy.entropy().item(), rel=0.02)
    assert metrics["rollout/unanswered_rate"] == 0.5


def policy_loss(experiences: list[Experience]) -> list[float]:
    loss = PolicyLoss()
    values = []
    for experience in experiences:
        moved = experience.action_log_probs + 0.01 * experience.action_log_probs.cos()
        tokens = experience.action_mask.sum().float()
        values.append(
            loss(moved, experience.action_log_probs, experience.advantages, experience.action_mask,
                 dp_size=1, batch_num_tokens=tokens, global_batch_size=torch.tensor(1.0))[0].item()
        )  # fmt: skip
    return values


def require_equal(left: list[Experience], right: list[Experience]) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right):
        for name in ("rewards", "advantages", "returns", "action_log_probs", "action_mask", "sequences"):
            assert torch.equal(getattr(a, name), getattr(b, name)), name
        for name in ("reward", "return", "group_reward_std"):
            assert torch.equal(a.info[name], b.info[name]), name
        assert a.index == b.index
    assert policy_loss(left) == policy_loss(right)


@pytest.mark.parametrize("estimator", ["group_norm", "rloo", "reinforce", "reinforce_baseline", "dr_grpo"])
@pytest.mark.parametrize("flags", [{}, {"reward.overlong_buffer_len": 4.0, "rollout.max_new_tokens": 10}])
def test_without_a_penalty_or_a_memory_everything_is_openrlhfs(tmp_path: Path, estimator: str, flags: dict) -> None:
    args = arguments(**{"algo.advantage.estimator": estimator, **flags})
    expected = plain_maker(args).make_experience_batch(recorded_rollouts())
    for maker in (our_maker(args), memory_maker(args, tmp_path, alpha=0.0, beta=0.0)[0]):
        for step in (1, 2):
            got = maker.make_step(recorded_rollouts(), step)
        require_equal(got.experiences, expected)


def run_steps(maker: ExperienceMaker, steps: int) -> list[Experience]:
    return last_step(maker, steps).experiences


def last_step(maker: ExperienceMaker, steps: int = 1) -> StepResult:
    """The same rollouts so many times."""
    for step in range(1, steps + 1):
        result = maker.make_step(recorded_rollouts(), step)
    return result


def test_the_penalty_reaches_the_shaped_reward_and_not_the_raw_one(tmp_path: Path) -> None:
    maker, pool = memory_maker(arguments(), tmp_path)
    experiences = run_steps(maker, 4)  # the same rollouts again: clusters of duplicates grow
    sizes = dict(zip(pool.shard.observe(4, pool.observed[-1]).sample, pool.shard.observe(4, pool.observed[-1]).size))
    assert max(sizes.values()) >= 3
    original = torch.cat([sample.rewards for sample in recorded_rollouts()])
    for experience in experiences:
        for row, sample in enumerate(experience.index):
            penalty = min(0.1 * np.log(sizes.get(sample, 0) + 1), 0.2)
            assert experience.info["reward"][row] == original[sample]
            assert experience.info["shaped_reward"][row].item() == pytest.approx(original[sample].item() - penalty)
            assert experience.rewards[row] == experience.info["shaped_reward"][row]
    shaped = torch.empty(12)
    for experience in experiences:
        shaped[experience.index] = experience.rewards
    groups = shaped.reshape(3, 4)
    expected = ((groups - groups.mean(-1, keepdim=True)) / (groups.std(-1, keepdim=True) + 1e-9)).reshape(-1)
    for experience in experiences:
        last = experience.returns.gather(1, experience.action_mask.cumsum(1).argmax(1, keepdim=True))[:, 0]
        torch.testing.assert_close(last, expected[experience.index])


@pytest.mark.parametrize("remember", ["wrong", "right", "both"])
def test_who_is_remembered_is_who_loses_reward(tmp_path: Path, remember: str) -> None:
    maker, _ = memory_maker(arguments(), tmp_path, remember)
    use_pool(maker, pool := SizesBySample())
    result = last_step(maker)
    right = [bool(sample.rewards) for sample in recorded_rollouts()]
    wanted = {"wrong": [False], "right": [True], "both": [False, True]}[remember]
    remembered = [sample for sample in range(12) if right[sample] in wanted]
    assert [row["sample"] for row in pool.rows] == remembered
    assert [row["correct"] for row in pool.rows] == [right[sample] for sample in remembered]
    shaped = np.zeros(12)
    for experience in result.experiences:
        for row, sample in enumerate(experience.index):
            penalty = min(0.1 * np.log(sample + 1), 0.2) if sample in remembered else 0.0
            expected = 1 / (1 + penalty) if right[sample] else -penalty
            assert experience.rewards[row].item() == pytest.approx(expected)
            assert experience.info["reward"][row] == right[sample]
            shaped[sample] = expected
    effect = penalty_effect(np.reshape(right, (3, 4)).astype(float), shaped.reshape(3, 4))
    assert result.metrics["meds/penalty_effect"] == pytest.approx(effect, abs=1e-9)


def test_the_share_without_an_answer_is_a_metric_also_without_a_memory() -> None:
    maker, samples = our_maker(arguments()), recorded_rollouts()
    maker.actor_model_group = FakePolicyGroup(True, AnswerLocator(TOKENIZER_OF_CHARACTERS))
    for sample, text in zip(samples, ["\\boxed{7}"] * 9 + ["7", "\\boxed{}", "\\boxed{7"]):
        ids = TOKENIZER_OF_CHARACTERS.encode(f"{text:<9}", add_special_tokens=False)
        sample.sequences = torch.tensor([[1, 1, 1, 1, *ids]])
        sample.attention_mask = torch.ones_like(sample.sequences)
        sample.action_mask = torch.tensor([[0, 0, 0, *[1] * len(ids)]])
    assert maker.make_step(samples, 1).metrics["rollout/unanswered_rate"] == 0.25


def test_metrics_say_what_was_done(tmp_path: Path) -> None:
    maker, pool = memory_maker(arguments(), tmp_path)
    metrics = last_step(maker, 4).metrics
    wrong = sum(sample.rewards.item() == 0 for sample in recorded_rollouts())
    assert metrics["meds/rows_step"] == wrong
    assert metrics["meds/rows"] == 4 * wrong
    assert metrics["meds/reward_raw"] == pytest.approx(1 - wrong / 12)
    assert metrics["meds/reward_shaped"] == pytest.approx(metrics["meds/reward_raw"] - metrics["meds/penalty_mean"])
    assert 0 < metrics["meds/penalized_share"] <= wrong / 12
    assert metrics["meds/clusters"] == pool.shard.stats().clusters
    assert metrics["meds/time_recording_ms"] == pytest.approx(3.0)  # three micro-batches of 1 ms


class Diversity:
    """Keeps what it is given."""

    def add(self, remembered: np.ndarray, right: np.ndarray, _stored: Any) -> dict[str, float]:
        self.remembered, self.right = remembered, right
        return {"diversity": 1.0}


def test_diversity_is_of_what_is_remembered_and_of_right_answers_with_a_feature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = recorded_rollouts()
    right = [i for i, sample in enumerate(samples) if sample.rewards.item() == 1]
    wrong = [i for i in range(12) if i not in right]
    absent = samples[right[0]].sequences[0, :10].tolist()

    def with_a_gap(sequences: torch.Tensor) -> np.ndarray:
        logits = layer_logits_of(sequences)
        logits[[ids[:10].tolist() == absent for ids in sequences]] = NO_ANSWER
        return logits

    monkeypatch.setattr("tests.training.step.rollouts.layer_logits_of", with_a_gap)
    maker, _ = memory_maker(arguments(), tmp_path)
    maker._diversity = diversity = Diversity()
    assert last_step(maker).metrics["diversity"] == 1.0
    for found, expected in ((diversity.remembered, wrong), (diversity.right, right[1:])):
        logits = np.concatenate([layer_logits_of(samples[i].sequences) for i in expected])
        np.testing.assert_array_equal(found, FeatureTransform().select(logits))


def test_the_verifiers_score_decides_what_is_wrong_and_not_the_reward(tmp_path: Path) -> None:
    """A reward may hold more than the verdict: here a point for the form, given to wrong answers only."""
    samples = recorded_rollouts()
    for sample in samples:
        sample.scores, sample.rewards = sample.rewards.clone(), 1 - sample.rewards
    wrong = [i for i, sample in enumerate(samples) if sample.scores.item() == 0]
    maker, pool = memory_maker(arguments(), tmp_path)
    maker.make_step(samples, 1)
    assert pool.observed[0].column("sample").to_pylist() == wrong
    assert set(pool.observed[0].column("correct").to_pylist()) == {False}


def test_rows_carry_their_own_samples_features_even_when_batches_are_reordered(tmp_path: Path) -> None:
    """Dynamic batching packs samples by length; a row's fingerprint must still be its own sample's."""
    flags = {"train.dynamic_batch_enable": True, "rollout.max_tokens_per_gpu": 40, "train.max_tokens_per_gpu": 40}
    maker, pool = memory_maker(arguments(**flags), tmp_path)
    experiences = run_steps(maker, 1)
    assert [sample for experience in experiences for sample in experience.index] != list(range(12))
    samples = recorded_rollouts()
    rows = pool.observed[0]
    assert len(rows) == sum(sample.rewards.item() == 0 for sample in samples)
    for row in rows.to_pylist():
        sample = samples[row["sample"]]
        np.testing.assert_array_equal(row["layer_logits"], layer_logits_of(sample.sequences)[0])
        assert sample.rewards.item() == 0
    for experience in experiences:
        torch.testing.assert_close(experience.info["reward"], torch.cat([samples[i].rewards for i in experience.index]))


def test_rollouts_without_an_answer_or_with_broken_logits_have_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = [i for i, sample in enumerate(recorded_rollouts()) if sample.rewards.item() == 0]
    absent, broken = recorded_rollouts()[wrong[0]].sequences, recorded_rollouts()[wrong[1]].sequences

    def with_gaps(sequences: torch.Tensor) -> np.ndarray:
        logits = layer_logits_of(sequences)
        for row, ids in enumerate(sequences):
            if ids[:10].tolist() == absent[0, :10].tolist():
                logits[row] = NO_ANSWER
            if ids[:10].tolist() == broken[0, :10].tolist():
                logits[row] = np.nan
        return logits

    monkeypatch.setattr("tests.training.step.rollouts.layer_logits_of", with_gaps)
    maker, pool = memory_maker(arguments(), tmp_path)
    run_steps(maker, 1)
    assert pool.observed[0].column("sample").to_pylist() == wrong[2:]
    (told,) = maker._context.told
    assert told.startswith("step 1: features of 1 of 11 responses are not finite")


def test_responses_without_a_reward_end_the_run() -> None:
    samples = recorded_rollouts()
    samples[5].rewards = samples[5].scores = None
    with pytest.raises(RunLostError, match=r"^1 of 12 responses have no reward: reward.remote_url raised"):
        our_maker(arguments()).make_step(samples, 1)


def test_a_step_with_only_right_answers_stores_nothing(tmp_path: Path) -> None:
    maker, pool = memory_maker(arguments(), tmp_path, correct_threshold=-1.0)
    metrics = last_step(maker).metrics
    assert len(pool.observed[0]) == 0
    assert metrics["meds/rows"] == 0
    assert "meds/eigen_ratio_step" not in metrics


def test_the_bonus_of_a_batch_needs_no_history(tmp_path: Path) -> None:
    maker, pool = memory_maker(arguments(), tmp_path, scope="batch", alpha=0.3, beta=0.2)
    result = last_step(maker)
    rows = pool.observed[0]
    features, codes = FeatureTransform()(memory_rows.layer_logits_of(rows)), memory_rows.group_codes(rows)[0]
    expected = sizes_in_batch(features, codes, PRESETS["paper"])
    sizes = dict(zip(rows.column("sample").to_pylist(), expected.tolist()))
    assert set(sizes.values()) >= {1}
    for experience in result.experiences:
        for row, sample in enumerate(experience.index):
            bonus = min(0.3 / sizes[sample], 0.2) if sample in sizes else 0
            gained = experience.info["shaped_reward"][row] - experience.info["reward"][row]
            assert gained.item() == pytest.approx(bonus)
    assert result.metrics["meds/penalty_mean"] < 0


def test_a_memory_of_answers_has_equal_rows_for_equal_ones() -> None:
    recorded = Recorded([None, "3", "12", "12.0"], np.ones(4, bool), np.empty((4, 0), np.float32), seconds=0.0)
    answered, rows = rows_of_answers([], recorded)
    assert answered.tolist() == [False, True, True, True]
    assert np.array_equal(rows[3], rows[2])
    assert not np.array_equal(rows[3], rows[1])
    assert np.isnan(rows[0]).all()


@pytest.mark.parametrize("reward", [-0.2, -0.1, 0.1, 0.0])
def test_a_group_of_equal_rewards_has_no_advantage(tmp_path: Path, reward: float) -> None:
    """In float32 the mean of sixteen times -0.2 is something else, which OpenRLHF divides by 1e-9."""
    flags = {"rollout.batch_size": 3, "rollout.n_samples_per_prompt": 16}
    maker, _ = memory_maker(arguments(**flags), tmp_path, alpha=0.0)
    samples = recorded_rollouts(prompts=3, responses=16)
    for sample in samples[16:32]:
        sample.rewards = torch.tensor([reward])
    for experience in maker.make_step(samples, 1).experiences:
        for row, sample in enumerate(experience.index):
            if 16 <= sample < 32:
                assert experience.advantages[row].abs().max() == 0
                assert experience.rewards[row] == experience.info["shaped_reward"][row] == pytest.approx(reward)
            elif experience.action_mask[row].any():
                assert experience.advantages[row].abs().max() > 0


def test_a_score_at_the_threshold_is_right() -> None:
    samples = recorded_rollouts()
    for score, sample in zip((0.4, 0.5, 0.6), samples):
        sample.scores = torch.tensor([score])
    assert our_maker(arguments()).make_step(samples, 1).judged.correct[:3].tolist() == [False, True, True]


def test_length_penalties_do_not_change_a_verdict() -> None:
    """Of a reward model, which gives no scores beside its rewards."""
    samples = recorded_rollouts()
    for sample in samples:
        sample.rewards, sample.scores = torch.tensor([0.6]), None
    args = arguments(**{"reward.overlong_buffer_len": 4.0, "rollout.max_new_tokens": 10})
    result = our_maker(args).make_step(samples, 1)
    assert torch.cat([experience.info["reward"] < 0.5 for experience in result.experiences]).any()
    assert result.judged.correct.all()


# ── estimators, and one rollout per prompt ──


@pytest.mark.parametrize(
    ("estimator", "responses"),
    [
        *[(name, 4) for name in ("gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo")],
        *[(name, 1) for name in ("gae", "reinforce", "flash_reinforce")],
    ],
)
def test_every_estimator_trains_on_the_shaped_rewards(tmp_path: Path, estimator: str, responses: int) -> None:
    """The advantages are OpenRLHF's for rewards less the penalty of repeated mistakes, limited for wrong rollouts."""
    prompts = 12 // responses
    flags = {
        "algo.advantage.estimator": estimator,
        "rollout.n_samples_per_prompt": responses,
        "rollout.batch_size": prompts,
    }
    settings = ShardSettings(layers=LAYERS, method=PRESETS["robust"])
    maker, pool = memory_maker(arguments(**flags), tmp_path, settings=settings)
    for step in (1, 2, 3, 4):
        result = maker.make_step(recorded_rollouts(prompts=prompts, responses=responses), step)
    shaped, raw = (in_order_of_samples(result.experiences, name) for name in ("shaped_reward", "reward"))
    wrong = raw == 0
    if responses == 1:  # three earlier visits with the same mistake
        torch.testing.assert_close(shaped, torch.where(wrong, -0.1 * np.log(4), raw.double()).float())
        assert pool.shard.stats().rows == 4 * wrong.sum()
    assert (shaped[wrong] < 0).any()
    samples = recorded_rollouts(prompts=prompts, responses=responses)
    unshaped = plain_maker(arguments(**flags)).make_experience_batch(samples)
    samples = recorded_rollouts(prompts=prompts, responses=responses)
    for sample, reward in zip(samples, shaped):
        sample.rewards = reward[None].clone()
    expected = plain_maker(arguments(**flags)).make_experience_batch(samples)
    for found, one, other in zip(result.experiences, expected, unshaped):
        limited = torch.minimum(one.advantages, other.advantages.clamp(min=0))
        advantages = torch.where(wrong[found.index][:, None], limited, one.advantages)
        torch.testing.assert_close(found.advantages, advantages)
        assert ("group_reward_std" in found.info) == (responses > 1)
    assert max(found.advantages.abs().max() for found in result.experiences) > 0.1
    assert result.metrics["meds/penalty_mean"] == pytest.approx((raw - shaped).mean().item(), abs=1e-6)


ESTIMATORS = ("gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo", "flash_reinforce")


class GivenSizes:
    """A memory that says how large each rollout's cluster is."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = np.array(sizes, np.int32)

    def observe(self, step: int, rows: Any) -> MemoryAnswer:
        sample = rows.column("sample").to_numpy()
        return MemoryAnswer(sample, np.zeros_like(sample), self._sizes[sample], ShardStats(), NO_MOMENTS)


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
    estimator: str, pass_at_k: int | None, right: list[bool], sizes: list[int], alpha: float
) -> None:
    """Whatever its group: an advantage above 0 is one that it has without the memory as well."""

    def made(alpha: float) -> list[Experience]:
        samples = recorded_rollouts()
        for sample, is_right in zip(samples, right):
            sample.rewards = torch.tensor([float(is_right)])
            sample.scores, sample.info = sample.rewards.clone(), {"reward": sample.rewards.clone()}
        args = arguments(**{"algo.advantage.estimator": estimator})
        with TemporaryDirectory() as folder:
            maker, _ = memory_maker(
                args, Path(folder), exploration=ExplorationSettings(pass_at_k=pass_at_k), alpha=alpha, beta=100.0
            )
        use_pool(maker, GivenSizes(sizes))
        return maker.make_step(samples, 1).experiences

    for found, without in zip(made(alpha), made(0.0)):
        for row, sample in enumerate(found.index):
            if not right[sample]:
                assert (found.advantages[row] <= without.advantages[row].clamp(min=0) + 1e-6).all()


def test_in_a_group_of_wrong_answers_the_unpenalized_one_gains_nothing(tmp_path: Path) -> None:
    """OpenRLHF's normalization alone would give it what a lone right answer gets."""
    flags = {"rollout.batch_size": 1, "rollout.n_samples_per_prompt": 8}
    maker, _ = memory_maker(arguments(**flags), tmp_path)
    use_pool(maker, GivenSizes([40] * 7 + [0]))
    samples = recorded_rollouts(prompts=1, responses=8)
    for sample in samples:
        sample.rewards = torch.zeros(1)
        sample.scores, sample.info = torch.zeros(1), {"reward": torch.zeros(1)}
    result = maker.make_step(samples, 1)
    advantages = {
        sample: float(row.min() if row.min() < 0 else row.max())
        for experience in result.experiences
        for sample, row in zip(experience.index, experience.advantages)
    }
    assert advantages[7] == 0
    assert [advantages[sample] for sample in range(7)] == pytest.approx([-0.3536] * 7, abs=1e-4)
    shaped = in_order_of_samples(result.experiences, "shaped_reward")
    assert shaped.tolist() == pytest.approx([-0.2] * 7 + [0.0])


def test_sizes_in_a_batch_count_a_groups_own_rows_and_noise_is_alone() -> None:
    near, wobble, far, single = [1.0, 0, 0, 0], [1.01, 0, 0, 0], [0, 0, 0, 9.0], [0, 50.0, 0, 0]
    features = np.array([near, near, wobble, far, [0, 0, 0, 9.01], single, near])
    codes = np.array([0, 2, 0, 0, 0, 0, 0])
    assert sizes_in_batch(features, codes, PRESETS["paper"]).tolist() == [3, 1, 3, 2, 2, 1, 3]
    assert sizes_in_batch(features[:0], codes[:0], PRESETS["paper"]).tolist() == []
