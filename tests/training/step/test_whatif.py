"""What `meds whatif` says of a method is what a training with it does."""

from pathlib import Path

import numpy as np
import pytest
import torch

from meds_openrlhf.config.schema import ExplorationSettings
from meds_openrlhf.shaping.focal import GAMMA
from meds_openrlhf.shaping.right_weight import LAMBDA
from meds_openrlhf.whatif.methods import BONUS, CANDIDATES, _advantages, sizes_of
from tests.training.step.rollouts import arguments, by_sample, memory_maker, recorded_rollouts, use_sizes
from tests.whatif.written import visits_of


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("name", ["penalty", "weights", "pass-at-k", "right-weight", "answer-ucb", "focal"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_advantages_are_those_of_a_training_on_these_rollouts(name: str, seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    steps = [{prompt: "".join(random.choice(list("rrxxxyz"), 4)) for prompt in "abc"} for _ in range(3)]
    visits = visits_of(*steps)
    settings_of = {
        "pass-at-k": {"pass_at_k": 2},
        "answer-ucb": {"answer_bonus": BONUS},
        "right-weight": {"right_weight": LAMBDA},
        "focal": {"focal_gamma": GAMMA},
    }
    exploration = settings_of.get(name, {})
    remember = "both" if name == "answer-ucb" else "wrong"
    form = {"form": "weights"} if name == "weights" else {"alpha": 0.0 if exploration else 0.1}
    settings = ExplorationSettings(**exploration)
    maker, _ = memory_maker(arguments(), tmp_path, remember=remember, exploration=settings, **form)
    (method,) = (candidate for candidate in CANDIDATES if candidate.name == name)
    ours = _advantages(visits, method)
    sizes = sizes_of(visits, method)
    for number, step in enumerate(range(1, 4)):
        part = slice(12 * number, 12 * number + 12)
        use_sizes(maker, sizes[part])
        samples = recorded_rollouts(seed=step, rewards=visits.reward[part])
        trained = by_sample(maker.make_step(samples, step).experiences, "advantages")
        torch.testing.assert_close(trained.double(), torch.from_numpy(ours[part]), rtol=1e-4, atol=2e-5)
