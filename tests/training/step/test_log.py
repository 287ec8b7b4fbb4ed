"""Rollouts on their way to the log: every sample's own tokens, nobody waits, and a full disk is said once."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from meds_openrlhf.memory.assignment import UNASSIGNED
from meds_openrlhf.memory.rows import prompt_key
from meds_openrlhf.training.step.log import RolloutSender, step_rollouts
from tests.training.step.rollouts import arguments, recorded_rollouts
from tests.training.step.test_experience import memory_maker, our_maker

pytestmark = pytest.mark.usefixtures("ray_cluster")


FLAGS = {"train.dynamic_batch_enable": True, "rollout.max_tokens_per_gpu": 40, "train.max_tokens_per_gpu": 40}


def test_each_sample_with_its_own_tokens_prompt_and_rewards_in_their_order(tmp_path: Path) -> None:
    maker, _ = memory_maker(arguments(**FLAGS), tmp_path)
    for step in (1, 2, 3):
        result = maker.make_step(recorded_rollouts(), step)
    assert [sample for one in result.experiences for sample in one.index] != list(range(12))
    rollouts = step_rollouts(3, result)
    assert rollouts.sample.tolist() == list(range(12))
    responses = np.split(rollouts.tokens, np.cumsum(rollouts.lengths)[:-1])
    originals = recorded_rollouts()
    for row, sample in enumerate(rollouts.sample):
        assert responses[row].tolist() == originals[sample].sequences[0, 4:].tolist()
        assert rollouts.prompt[row] == prompt_key(f"prompt {sample // 4}")
        assert rollouts.reward[row] == originals[sample].rewards.item()
        assert rollouts.correct[row] == bool(originals[sample].rewards)
        assert rollouts.label[row] == result.judged.label[sample]
        lost = min(0.1 * np.log(rollouts.cluster_size[row] + 1), 0.2)
        assert rollouts.reward[row] - rollouts.shaped_reward[row] == pytest.approx(lost)
    assert rollouts.generated.all()
    assert (rollouts.cluster_size > 0).any()


def test_without_a_memory_there_are_verdicts_and_no_clusters() -> None:
    rollouts = step_rollouts(1, our_maker(arguments(**FLAGS)).make_step(recorded_rollouts(), 1))
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


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("no histogram")])
def test_what_cannot_be_written_is_said_once_and_ends_nothing(error: Exception) -> None:
    said: list[str] = []
    recorder = Recorder.remote(error)
    ray.get(recorder.release.remote())
    sender = RolloutSender(recorder, said.append)
    for step in range(6):
        sender.send(step)  # type: ignore[arg-type]
    sender.flush()
    assert len(said) == 1
    assert str(error) in said[0]
    assert "training continues" in said[0]


def test_a_recorder_that_died_is_said() -> None:
    said: list[str] = []
    recorder = Recorder.remote()
    sender = RolloutSender(recorder, said.append)
    sender.send(1)  # type: ignore[arg-type]
    ray.kill(recorder)
    sender.flush()
    assert len(said) == 1
