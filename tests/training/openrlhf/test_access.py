"""OpenRLHF's source without its imports: modules, its parser, and what its arguments say of roles and batches."""

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.placement.batching import steps_of_an_epoch
from meds_openrlhf.placement.roles import RoleRequest, role_requests
from meds_openrlhf.training.openrlhf.access import parse_openrlhf_arguments
from tests.training.step.rollouts import arguments

BASE = {"vllm.num_engines": 1, "algo.advantage.estimator": "group_norm", "rollout.n_samples_per_prompt": 8}


def test_values_defaults_and_validation_are_openrlhfs() -> None:
    given = {"actor.eps_clip_low_high": [0.2, 0.28], "vllm.enforce_eager": True, "actor.muon.nesterov": False}
    args = parse_openrlhf_arguments(
        {**BASE, **given, "reward.stop_properly_penalty_coef": -1e-6, "actor.dual_clip": None}
    )
    assert (args.actor.eps_clip_low_high, args.vllm.enforce_eager) == ([0.2, 0.28], True)
    assert (args.actor.muon.nesterov, args.reward.stop_properly_penalty_coef) == (False, -1e-6)
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


KL, GAE = {"algo.kl.init_coef": 0.01}, {"algo.advantage.estimator": "gae"}
POLICY, ENGINES = RoleRequest("policy", 1, 4), RoleRequest("engines", 2, 1)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, [POLICY, ENGINES]),
        (KL, [POLICY, ENGINES, RoleRequest("reference", 1, 4)]),
        (KL | {"train.colocate_actor_ref": True}, [POLICY, ENGINES, RoleRequest("reference", 1, 4, "policy")]),
        (
            KL | {"train.colocate_all": True, "vllm.tensor_parallel_size": 2},
            [POLICY, RoleRequest("engines", 2, 2, "policy"), RoleRequest("reference", 1, 4, "policy")],
        ),
        # Engines of an asynchronous run generate while the policy trains.
        ({"train.colocate_all": True, "train.async_enable": True, "vllm.enable_sleep": False}, [POLICY, ENGINES]),
        ({**GAE, "critic.num_gpus_per_node": 3}, [POLICY, ENGINES, RoleRequest("critic", 1, 3)]),
    ],
)
def test_roles_ask_for_what_openrlhf_gives_them(flags: dict, expected: list[RoleRequest]) -> None:
    counts = {"vllm.num_engines": 2, "actor.num_gpus_per_node": 4, "ref.num_gpus_per_node": 4}
    sizes = {"actor.model_name_or_path": "m", "rollout.batch_size": 64}
    assert role_requests(arguments(**{**counts, **sizes, **flags})) == expected


def test_steps_of_an_epoch_follow_from_batches_and_ranks() -> None:
    sizes = {"rollout.batch_size": 24, "rollout.micro_batch_size": 4, "train.batch_size": 16}
    args = arguments(**sizes, **{"algo.kl.init_coef": 0.001, "ref.num_gpus_per_node": 6})
    assert [steps_of_an_epoch(args, prompts) for prompts in (24, 35, 36)] == [1, 1, 2]  # 6 ranks take 48 responses
    message = r"^data.prompt_dataset.*: has 3 prompts to train on, which make 12 responses, but a step needs 48. Use"
    with pytest.raises(ConfigError, match=message):
        steps_of_an_epoch(args, 3)
