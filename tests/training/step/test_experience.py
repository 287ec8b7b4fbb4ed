"""Experience from recorded rollouts: OpenRLHF's own without a penalty, what is remembered, and what is shaped."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from meds_openrlhf.config import MedsSettings
from meds_openrlhf.config.schema import FeatureSettings
from meds_openrlhf.features.kind import FeatureFunction, Kind
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.shaping.law import penalty_effect
from meds_openrlhf.training.step.experience import ExperienceMaker
from meds_openrlhf.training.step.log import metrics_of_policy
from meds_openrlhf.training.step.samples import SampleOrder, generated_tokens, is_right, responses_of
from tests.rollouts.tables import step_table
from tests.training.step.rollouts import (
    BY_TOKENS,
    NO_ANSWER,
    NOT_RECORDED,
    TOKENIZER,
    arguments,
    by_sample,
    context_of,
    last_step,
    layer_logits_of,
    memory_maker,
    models_of,
    our_maker,
    plain_maker,
    recorded_rollouts,
    set_texts,
    use_sizes,
)
from tests.training.step.test_batches import require_equal

pytestmark = pytest.mark.usefixtures("ray_cluster")

REWARDS = [sample.rewards.item() for sample in recorded_rollouts()]
WRONG = [sample for sample, reward in enumerate(REWARDS) if reward == 0]


def test_the_policys_entropy_is_estimated_from_the_tokens_that_it_drew() -> None:
    torch.manual_seed(0)
    policy = torch.distributions.Categorical(logits=2 * torch.randn(50))
    drawn = policy.log_prob(policy.sample((40, 1000)))
    mask = torch.rand(40, 1000) < 0.7
    drawn[~mask] = -99.0  # replies of tools
    batches = [Experience(action_log_probs=drawn[rows], action_mask=mask[rows]) for rows in (slice(0, 3), slice(3, 40))]
    answers = [
        *["7"] * 10,
        *["8", "9", "8.0", None, "5"],
        *[None] * 25,
    ]  # ten to a prompt; the first ten and "5" are right
    correct = np.array([answer in ("7", "5") for answer in answers])
    metrics = metrics_of_policy(batches, step_table(40, group=10, answer=answers, correct=correct), 2000.0)
    assert metrics["policy_entropy"] == pytest.approx(policy.entropy().item(), rel=0.02)
    assert metrics["rollout/unanswered_rate"] == 26 / 40
    assert metrics["rollout/distinct_wrong_answers"] == 2 / 4
    assert metrics["rollout/equal_wrong_answers"] == 1 / 3  # of "8", "9" and "8.0"
    assert metrics["rollout/solved_prompts"] == 2 / 4
    assert (metrics["rollout/trained_tokens"], metrics["rollout/generated_tokens"]) == (mask.sum().item(), 2000)


@pytest.mark.parametrize(
    ("flags", "apart", "told"),
    [({}, 0.03, 1), ({}, float("nan"), 1), ({}, -0.03, 1), ({}, 0.015, 0), ({"train.async_enable": True}, 0.03, 0),
     ({"rollout.top_p": 0.9}, 0.03, 0), ({"algo.advantage.is_correction_level": "token"}, 0.03, 1)],
)  # fmt: skip
def test_engines_that_give_tokens_other_log_probs_than_the_policy_are_noticed(
    flags: dict[str, Any], apart: float, told: int
) -> None:
    maker = our_maker(args := arguments(**flags))
    for step in (1, 2):
        samples = recorded_rollouts()
        for sample in samples:
            policys = -(sample.sequences[:, 1:].float() / 50)
            sample.rollout_log_probs = torch.where(sample.action_mask == 1, policys + apart, torch.tensor(99.0))
        result = maker.make_step(samples, step)
        assert result.metrics["vllm_kl"] == pytest.approx(apart, rel=1e-4, nan_ok=True)
        corrects = (
            args.algo.advantage.is_correction_level != "off"
        )  # and otherwise no rank needs the engines' log-probs
        assert all((batch.rollout_log_probs is not None) == corrects for batch in result.experiences)
    assert len(maker._context.told) == told
    assert all("step 1: engines and policy give the same tokens" in line for line in maker._context.told)


@pytest.mark.parametrize("estimator", ["group_norm", "rloo", "reinforce", "reinforce_baseline", "dr_grpo"])
@pytest.mark.parametrize("flags", [{}, {"reward.overlong_buffer_len": 4.0, "rollout.max_new_tokens": 10}])
def test_without_a_penalty_or_a_memory_everything_is_openrlhfs(tmp_path: Path, estimator: str, flags: dict) -> None:
    args = arguments(**{"algo.advantage.estimator": estimator, **flags})
    expected = plain_maker(args).make_experience_batch(recorded_rollouts())
    for maker in (our_maker(args), memory_maker(args, tmp_path, alpha=0.0, beta=0.0)[0]):
        found = last_step(maker, 2).experiences
        for experience in found:
            assert torch.equal(experience.info.pop("shaped_reward"), experience.info["reward"])
        require_equal(found, expected)


@pytest.mark.parametrize(("remember", "wanted"), [("wrong", [0]), ("right", [1]), ("both", [0, 1])])
def test_who_is_remembered_is_who_loses_reward(tmp_path: Path, remember: str, wanted: list[int]) -> None:
    maker, _ = memory_maker(arguments(), tmp_path, remember)
    pool = use_sizes(maker, range(12))
    result = last_step(maker)
    remembered = [sample for sample in range(12) if REWARDS[sample] in wanted]
    assert [row["sample"] for row in pool.rows] == remembered
    assert [row["correct"] for row in pool.rows] == [REWARDS[sample] == 1 for sample in remembered]
    penalties = np.where(np.isin(REWARDS, wanted), np.minimum(0.1 * np.log(np.arange(1, 13)), 0.2), 0)
    shaped = np.where(np.array(REWARDS) == 1, 1 / (1 + penalties), -penalties)
    assert by_sample(result.experiences, "rewards").tolist() == pytest.approx(shaped.tolist())
    assert by_sample(result.experiences, "reward").tolist() == REWARDS
    effect = penalty_effect(np.reshape(REWARDS, (3, 4)), shaped.reshape(3, 4))
    assert result.metrics["meds/penalty_effect"] == pytest.approx(effect, abs=1e-9)
    assert result.metrics["meds/rows_step"] == len(remembered)
    assert result.metrics["meds/penalized_share"] == pytest.approx(np.mean(penalties > 0))
    assert result.metrics["meds/reward_raw"] == pytest.approx(np.mean(REWARDS))
    assert result.metrics["meds/reward_shaped"] == pytest.approx(shaped.mean())
    assert result.metrics["meds/time_recording_ms"] == pytest.approx(3.0)  # three micro-batches of 1 ms


class Diversity:
    """Keeps what it is given."""

    def add(self, remembered: np.ndarray, right: np.ndarray, *, stored: Any, prompts: np.ndarray) -> dict[str, float]:
        self.remembered, self.right, self.prompts = remembered, right, prompts
        return {"diversity": 1.0}


def put_into_logits(monkeypatch: pytest.MonkeyPatch, values: dict[int, float]) -> None:
    """Some samples' layer logits are these values: NO_ANSWER if there is none."""
    samples = recorded_rollouts()
    beginnings = {tuple(samples[number].sequences[0, :10].tolist()): value for number, value in values.items()}

    def changed(sequences: torch.Tensor) -> np.ndarray:
        logits = layer_logits_of(sequences)
        for row, ids in enumerate(sequences):
            logits[row] = beginnings.get(tuple(ids[:10].tolist()), logits[row])
        return logits

    monkeypatch.setattr("tests.training.step.rollouts.layer_logits_of", changed)


def test_the_verifiers_score_decides_what_is_wrong_and_not_the_reward(tmp_path: Path) -> None:
    """A reward may hold more than the verdict: here a point for the form, given to wrong answers only."""
    samples = recorded_rollouts()
    for sample in samples:
        sample.rewards = 1 - sample.scores
    maker, pool = memory_maker(arguments(), tmp_path)
    maker.make_step(samples, 1)
    assert pool.observed[0].column("sample").to_pylist() == WRONG
    assert set(pool.observed[0].column("correct").to_pylist()) == {False}


def test_rows_carry_their_own_samples_features_even_when_batches_are_reordered(tmp_path: Path) -> None:
    """Dynamic batching packs samples by length; a row's fingerprint must still be its own sample's."""
    maker, pool = memory_maker(arguments(**BY_TOKENS), tmp_path)
    experiences = last_step(maker).experiences
    assert [sample for experience in experiences for sample in experience.index] != list(range(12))
    rows, samples = pool.observed[0].to_pylist(), recorded_rollouts()
    assert [row["sample"] for row in rows] == WRONG
    for row in rows:
        np.testing.assert_array_equal(row["layer_logits"], layer_logits_of(samples[row["sample"]].sequences)[0])
    assert by_sample(experiences, "reward").tolist() == REWARDS


def test_rollouts_without_answer_or_finite_logits_have_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples, right = recorded_rollouts(), [sample for sample in range(12) if sample not in WRONG]
    put_into_logits(monkeypatch, {WRONG[0]: NO_ANSWER, WRONG[1]: np.nan, right[0]: NO_ANSWER})
    maker, pool = memory_maker(arguments(), tmp_path)
    maker.diversity = diversity = Diversity()
    assert last_step(maker).metrics["diversity"] == 1.0
    assert pool.observed[0].column("sample").to_pylist() == WRONG[2:]
    assert diversity.prompts.tolist() == [sample // 4 for sample in WRONG[2:]]
    (told,) = maker._context.told
    assert told.startswith("step 1: features of 1 of 10 responses are not finite")
    for found, expected in ((diversity.remembered, WRONG[2:]), (diversity.right, right[1:])):
        logits = np.concatenate([layer_logits_of(samples[sample].sequences) for sample in expected])
        np.testing.assert_array_equal(found, FeatureTransform().select(logits))


def test_what_the_generation_tells_is_part_of_the_step() -> None:
    result = our_maker(arguments()).make_step(recorded_rollouts(), 1, generated=600, extras=4)
    assert result.metrics["rollout/generated_tokens"] == 600
    assert result.rollouts.is_extra.tolist() == [False] * 8 + [True] * 4


def test_length_penalties_do_not_change_a_verdict() -> None:
    """Of a reward model, which gives no scores beside its rewards."""
    samples = recorded_rollouts(rewards=[0.6] * 12)
    for sample in samples:
        sample.scores = None
    args = arguments(**{"reward.overlong_buffer_len": 4.0, "rollout.max_new_tokens": 10})
    result = our_maker(args).make_step(samples, 1)
    assert (by_sample(result.experiences, "reward") < 0.5).any()
    assert result.rollouts.correct.all()


def test_the_mask_of_actions_is_one_token_behind() -> None:
    actions = torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1]])
    attention = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]])  # the second row ends earlier
    assert generated_tokens(actions, attention).tolist() == [
        [False, False, True, True, False],
        [False, False, True, True, False],
    ]


def test_without_a_memory_a_function_is_not_even_loaded(tmp_path: Path) -> None:
    function = tmp_path / "mine.py"
    function.write_text("def from_hidden_states(hidden_states):\n    return hidden_states[:, -1]\n")
    meds = MedsSettings(run_dir="x", enabled=False, features=FeatureSettings(function=str(function)))
    context = replace(context_of(meds), feature=replace(NOT_RECORDED, kind=Kind.FUNCTION))
    result = ExperienceMaker(*models_of(arguments()), context=context).make_step(recorded_rollouts(), 1)
    require_equal(result.experiences, our_maker(arguments()).make_step(recorded_rollouts(), 1).experiences)


def test_every_sample_has_the_row_of_its_own_texts_in_the_order_of_the_index() -> None:
    asked = list[tuple[str, str]]()

    def lengths(prompts: list[str], responses: list[str]) -> np.ndarray:
        asked.extend(zip(prompts, responses))
        return np.array([[len(prompt), len(response)] for prompt, response in zip(prompts, responses)])

    samples = recorded_rollouts()[::-1]
    for number, sample in enumerate(samples):
        set_texts(sample, "1+1=", "1+" * (number + 1), [TOKENIZER.eos_token_id])
    maker = our_maker(arguments())
    maker._context, maker.tokenizer = replace(maker._context, feature=NOT_RECORDED, pool="unused"), TOKENIZER
    maker._function = FeatureFunction(Path("my.py"), "from_texts", 2, lengths)
    order = SampleOrder(samples)
    prompts = order.items([sample.prompts for sample in samples])
    present, rows = maker._rows(recorded=None, prompts=prompts, responses=order.items(map(responses_of, samples)))
    assert present.all()
    assert asked[0] == (samples[-1].prompts[0], "1+" * len(samples))
    assert rows[:, 1].tolist() == [2 * number for number in range(len(samples), 0, -1)]


def test_a_score_of_exactly_the_threshold_is_right() -> None:
    scored = Experience(rewards=torch.zeros(3), scores=torch.tensor([0.49, 0.5, 0.51]))
    assert is_right(scored, 0.5).tolist() == [False, True, True]
    assert is_right(Experience(rewards=torch.tensor([0.5, 0.0])), 0.5).tolist() == [True, False]


def test_a_tools_reply_at_the_end_belongs_to_the_response() -> None:
    """Its mask is one token behind: of six tokens, two generated, then two of a reply, then padding."""
    sample = Experience(
        sequences=torch.tensor([[5, 6, 7, 8, 9, 10, 0]]),
        action_mask=torch.tensor([[0, 1, 1, 0, 0, 0]]),
        attention_mask=torch.tensor([[1, 1, 1, 1, 1, 1, 0]]),
    )
    ((tokens, generated),) = responses_of(sample)
    assert tokens.tolist() == [7, 8, 9, 10]
    assert generated.tolist() == [True, True, False, False]
