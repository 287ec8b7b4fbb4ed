"""Rollouts on their way to the log, for which nobody waits, and the metrics of an evaluation."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from openrlhf.trainer.ppo_utils.experience import Experience

from meds_openrlhf.features.answer import AnswerLocator
from meds_openrlhf.memory.rows import prompt_key
from meds_openrlhf.memory.sets import UNASSIGNED
from meds_openrlhf.training.step.log import RolloutSender, eval_line, eval_metrics
from tests.training.step.rollouts import (
    BY_TOKENS,
    TOKENIZER,
    arguments,
    memory_maker,
    our_maker,
    recorded_rollouts,
    set_texts,
)

pytestmark = pytest.mark.usefixtures("ray_cluster")


def test_each_sample_with_its_own_tokens_prompt_and_rewards_in_their_order(tmp_path: Path) -> None:
    maker, _ = memory_maker(arguments(**BY_TOKENS), tmp_path)
    for step in (1, 2, 3):
        result = maker.make_step(recorded_rollouts(), step)
    assert [sample for one in result.experiences for sample in one.index] != list(range(12))
    rollouts = result.rollouts
    assert rollouts.sample.tolist() == list(range(12))
    responses = np.split(rollouts.token_ids, np.cumsum(rollouts.tokens)[:-1])
    originals = recorded_rollouts()
    for row, sample in enumerate(rollouts.sample):
        assert responses[row].tolist() == originals[sample].sequences[0, 4:].tolist()
        assert rollouts.prompt[row] == prompt_key(f"prompt {sample // 4}")
        assert rollouts.reward[row] == originals[sample].rewards.item()
        assert rollouts.correct[row] == bool(originals[sample].rewards)
        assert rollouts.label[row] != UNASSIGNED or rollouts.correct[row]
        lost = min(0.1 * np.log(rollouts.cluster_size[row] + 1), 0.2)
        assert rollouts.reward[row] - rollouts.shaped_reward[row] == pytest.approx(lost)
    assert rollouts.generated.all()
    assert (rollouts.cluster_size > 0).any()


def test_without_a_memory_there_are_verdicts_and_no_clusters() -> None:
    rollouts = our_maker(arguments(**BY_TOKENS)).make_step(recorded_rollouts(), 1).rollouts
    rewards = [sample.rewards.item() for sample in recorded_rollouts()]
    assert rollouts.correct.tolist() == [bool(rewards[sample]) for sample in rollouts.sample]
    assert set(rollouts.label.tolist()) == {UNASSIGNED}
    np.testing.assert_array_equal(rollouts.reward, rollouts.shaped_reward)


@ray.remote(max_concurrency=8)
class Recorder:
    """Writes nothing before it may."""

    def __init__(self, error: Exception | None = None) -> None:
        self.steps: list[Any] = []
        self._error = error
        self._may_write = threading.Event()

    def record(self, step: Any) -> None:
        self._may_write.wait()
        if self._error is not None:
            raise self._error
        self.steps.append(step)

    def release(self) -> None:
        self._may_write.set()

    def written(self) -> list[Any]:
        return self.steps


def test_training_goes_on_while_a_step_is_written() -> None:
    recorder = Recorder.remote()
    sender = RolloutSender(recorder, pytest.fail)
    for step in (1, 2, 3):
        sender.send(step)  # type: ignore[arg-type]
    assert ray.get(recorder.written.remote()) == []
    ray.get(recorder.release.remote())
    sender.flush()
    assert sorted(ray.get(recorder.written.remote())) == [1, 2, 3]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("no histogram"), None])
def test_what_cannot_be_written_is_said_once_and_ends_nothing(error: Exception | None) -> None:
    said: list[str] = []
    recorder = Recorder.remote(error)
    sender = RolloutSender(recorder, said.append)
    sender.send(1)  # type: ignore[arg-type]
    if error is None:
        ray.kill(recorder)
    else:
        ray.get(recorder.release.remote())
    for step in range(2, 7):
        sender.send(step)  # type: ignore[arg-type]
    sender.flush()
    assert len(said) == 1
    assert ("ActorDiedError" if error is None else str(error)) in said[0]
    assert "training continues" in said[0]


PROMPTS = [(["aime24"], ["p0"], ["1"], [None]), (["aime24"], ["p1"], ["1"], [None]), (["amc23"], ["p2"], ["1"], [None])]
LOCATOR = AnswerLocator(TOKENIZER)


def samples() -> list[Experience]:
    """Right: 1 of 4, 3 of 4, 0 of 4. The reward of a wrong one has a part for its format.

    Every prompt has a box, and so has the response to the first.
    """
    found = recorded_rollouts(rewards=[*(0, 1, 0, 0), *(1, 1, 0, 1), *(0, 0, 0, 0)])
    for number, sample in enumerate(found):
        set_texts(sample, "in a \\boxed{1} ", "\\boxed{7}" if number < 4 else "seven")
        sample.prompts, sample.rewards = [f"p{number // 4}"], sample.scores.clamp(min=0.1)
    return found


def test_pass_at_k_is_unbiased_and_of_the_verdicts_alone() -> None:
    metrics = eval_metrics(PROMPTS, samples(), 4, threshold=0.5, locator=LOCATOR)
    assert metrics["eval_aime24_pass1"] == pytest.approx((1 / 4 + 3 / 4) / 2)
    # 1 - C(3, 2) / C(4, 2) = 1 / 2, and every pair of the second problem holds a right one
    assert metrics["eval_aime24_pass2"] == pytest.approx((1 / 2 + 1) / 2)
    assert metrics["eval_aime24_pass4"] == 1
    assert metrics["eval_amc23_pass1"] == metrics["eval_amc23_pass4"] == 0
    assert metrics["eval_num_samples"] == 12
    assert metrics["eval_aime24_unanswered_rate"] == 0.5
    assert metrics["eval_amc23_unanswered_rate"] == 1
    line = "evaluation after step 20: aime24 pass@1 0.500, pass@4 1.000; amc23 pass@1 0.000, pass@4 0.000"
    assert eval_line(20, metrics) == line
    of_one = eval_metrics(PROMPTS[:1], samples()[1:2], 1, threshold=0.5, locator=LOCATOR)
    assert eval_line(3, of_one) == "evaluation after step 3: aime24 pass@1 1.000"
