"""Every method's update is, with every estimator, the former one to the last bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties

from meds_openrlhf.config.schema import ExplorationSettings
from tests.training.step.former import former_update
from tests.training.step.rollouts import (
    BY_TOKENS,
    NO_ANSWER,
    arguments,
    layer_logits_of,
    memory_maker,
    our_maker,
    recorded_rollouts,
    use_sizes,
)
from tests.training.step.test_advantages import ESTIMATORS
from tests.training.step.test_batches import require_equal

pytestmark = pytest.mark.usefixtures("ray_cluster")

METHODS: dict[str, dict[str, Any]] = {
    "penalty": {},
    "steep penalty": {"alpha": 1.0, "beta": 100.0},
    "shuffled": {"alpha": 1.0, "beta": 100.0, "shuffled": True},
    "weights": {"form": "weights"},
    "weights and extras": {"form": "weights", "extras": 1},
    "penalty and extras": {"extras": 1},
    "pass@2": {"exploration": ExplorationSettings(pass_at_k=2)},
    "answer bonus": {"exploration": ExplorationSettings(answer_bonus=0.2), "remember": "both"},
}
OVERLONG = {"reward.overlong_buffer_len": 4.0, "rollout.max_new_tokens": 10}
WITHOUT_ROW = {2, 7}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("flags", [{}, OVERLONG, BY_TOKENS], ids=["", "overlong", "by tokens"])
def test_an_update_is_the_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, estimator: str, flags: dict[str, Any]
) -> None:
    settings = METHODS[method]
    args = arguments(**{"algo.advantage.estimator": estimator, "algo.kl.init_coef": 0, **flags})
    rewards = [0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, *[0.0] * 4]
    sizes = np.array([11, 3, 5, 2, 9, 3, 9, 3, 7, 0, 8, 70])
    is_extra = np.arange(12) >= 8 if settings.get("extras") else np.zeros(12, bool)
    beginnings = {tuple(s.sequences[0, :10].tolist()) for n, s in enumerate(recorded_rollouts()) if n in WITHOUT_ROW}

    def logits(sequences: torch.Tensor) -> np.ndarray:
        found = layer_logits_of(sequences)
        found[[tuple(ids[:10].tolist()) in beginnings for ids in sequences]] = NO_ANSWER
        return found

    monkeypatch.setattr("tests.training.step.rollouts.layer_logits_of", logits)
    maker, _ = memory_maker(args, tmp_path, **settings)
    use_sizes(maker, sizes)
    meds = maker._context.meds
    samples = recorded_rollouts(rewards=rewards)
    found = maker.make_step(samples, 3, extras=int(is_extra.sum())).experiences

    plain = our_maker(args)
    experiences = plain.make_experience(plain.split_rollout_samples(recorded_rollouts(rewards=rewards)))
    correct = np.array(rewards) >= 0.5
    apply_length_penalties(experiences, args)
    raw = np.empty(12, np.float32)
    for experience in experiences:
        raw[experience.index] = experience.rewards.numpy()
    has_row = np.array([sample not in WITHOUT_ROW for sample in range(12)])
    require_equal(found, former_update(plain, experiences, meds, 3, raw, correct, sizes, has_row, is_extra))
