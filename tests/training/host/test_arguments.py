"""OpenRLHF's own parser, reached from our configuration."""

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.training.host.openrlhf import parse_openrlhf_arguments

BASE = {"vllm.num_engines": 1, "algo.advantage.estimator": "group_norm", "rollout.n_samples_per_prompt": 8}


def test_values_defaults_and_validation_are_openrlhfs() -> None:
    args = parse_openrlhf_arguments(
        {
            **BASE,
            "actor.adam.lr": 1e-4,
            "actor.eps_clip_low_high": [0.2, 0.28],
            "vllm.enforce_eager": True,
            "actor.muon.nesterov": False,
            "reward.stop_properly_penalty_coef": -1e-6,
            "actor.dual_clip": None,
        }
    )
    assert args.actor.adam.lr == 1e-4
    assert args.actor.eps_clip_low_high == [0.2, 0.28]
    assert args.vllm.enforce_eager is True
    assert args.actor.muon.nesterov is False
    assert args.reward.stop_properly_penalty_coef == -1e-6
    assert args.train.batch_size == 128  # a default of OpenRLHF
    assert args.critic.model_name_or_path is None  # decided by its validation


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"actor.model_name": "m"}, r"actor.model_name=m: unknown setting. Did you mean actor.model_name_or_path\?"),
        ({"train.batch_size": "many"}, r"train.batch_size=many: invalid int value$"),
        ({"algo.advantage.estimator": "best"}, r"algo.advantage.estimator=best: .*choose from 'gae'"),
        ({"vllm.enforce_eager": 3}, r"vllm.enforce_eager=3: must be true or false."),
        ({"reward.clip_range": [1]}, r"reward.clip_range=\[1\]: expected 2 arguments"),
        ({"rollout.n_samples_per_prompt": 1}, r"refuses these settings: group_norm requires n_samples_per_prompt > 1"),
        ({"rollout.batch_size": 1, "rollout.micro_batch_size": 16}, r"processes\. Lower rollout\.micro_batch_size\.$"),
    ],
)
def test_refused_in_one_line(flags: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_openrlhf_arguments({**BASE, **flags})
    assert "\n" not in str(caught.value)
