"""OpenRLHF's source without its imports: modules, its parser, and what its arguments say of roles and batches."""

import subprocess
import sys

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.placement.plan import RoleRequest
from meds_openrlhf.training.host.openrlhf import (
    even_batch,
    module_alone,
    parse_openrlhf_arguments,
    role_requests,
    steps_of_an_epoch,
)
from tests.training.step.rollouts import arguments

BASE = {"vllm.num_engines": 1, "algo.advantage.estimator": "group_norm", "rollout.n_samples_per_prompt": 8}
PROGRAM = f"""
import sys
from meds_openrlhf.training.host.openrlhf import parse_openrlhf_arguments
print(parse_openrlhf_arguments({BASE}).train.batch_size)
print(*{{"torch", "ray", "vllm", "deepspeed", "openrlhf"}} & sys.modules.keys())
"""


def test_flags_are_parsed_without_the_packages_of_a_training() -> None:
    printed = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    assert printed == "128\n\n"


def test_a_module_alone_is_the_one_that_openrlhf_imports() -> None:
    from openrlhf.utils.config import hierarchize

    alone = module_alone("openrlhf.utils.config")
    assert alone.__file__ == hierarchize.__code__.co_filename
    assert alone.hierarchize.__code__.co_code == hierarchize.__code__.co_code
    assert module_alone("openrlhf.utils.config") is alone


def test_a_package_that_is_missing_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        module_alone("no_such_package.script")


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


POLICY, ENGINES = RoleRequest("policy", 1, 4), RoleRequest("engines", 2, 1)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, [POLICY, ENGINES]),
        ({"algo.kl.init_coef": 0.01}, [POLICY, ENGINES, RoleRequest("reference", 1, 4)]),
        (
            {"algo.kl.init_coef": 0.01, "train.colocate_actor_ref": True},
            [POLICY, ENGINES, RoleRequest("reference", 1, 4, "policy")],
        ),
        (
            {"algo.kl.init_coef": 0.01, "train.colocate_all": True, "vllm.tensor_parallel_size": 2},
            [POLICY, RoleRequest("engines", 2, 2, "policy"), RoleRequest("reference", 1, 4, "policy")],
        ),
        # Engines of an asynchronous run generate while the policy trains.
        ({"train.colocate_all": True, "train.async_enable": True, "vllm.enable_sleep": False}, [POLICY, ENGINES]),
        (
            {"algo.advantage.estimator": "gae", "critic.num_gpus_per_node": 3},
            [POLICY, ENGINES, RoleRequest("critic", 1, 3)],
        ),
    ],
)
def test_roles_ask_for_what_openrlhf_gives_them(flags: dict, expected: list[RoleRequest]) -> None:
    counts = {"vllm.num_engines": 2, "actor.num_gpus_per_node": 4, "ref.num_gpus_per_node": 4}
    sizes = {"actor.model_name_or_path": "m", "rollout.batch_size": 64}
    assert role_requests(arguments(**{**counts, **sizes, **flags})) == expected


def test_an_even_batch_fills_mini_batches_and_gives_every_rank_as_much() -> None:
    flags = {"train.batch_size": 256, "rollout.n_samples_per_prompt": 16, "rollout.micro_batch_size": 4}
    sizes = {"rollout.batch_size": 512, "algo.kl.init_coef": 0.001}
    for ranks, expected in [(8, 256), (32, 256), (96, 768)]:
        counts = {"actor.num_gpus_per_node": ranks, "ref.num_gpus_per_node": ranks}
        assert even_batch(arguments(**flags, **sizes, **counts)) == expected


SMALL = {
    "rollout.batch_size": 8, "rollout.n_samples_per_prompt": 4, "rollout.micro_batch_size": 4, "train.batch_size": 16,
}  # fmt: skip


@pytest.mark.parametrize(("prompts", "steps"), [(16, 2), (19, 2), (20, 3), (24, 3), (100, 13), (4, 1)])
def test_an_epochs_last_step_holds_a_mini_batch_or_is_none(prompts: int, steps: int) -> None:
    assert steps_of_an_epoch(arguments(**SMALL), prompts) == steps


def test_too_few_prompts_for_a_step_are_refused() -> None:
    message = r"^data.prompt_dataset.*: has 3 prompts to train on, which make 12 responses, but a step needs 16. Use"
    with pytest.raises(ConfigError, match=message):
        steps_of_an_epoch(arguments(**SMALL), 3)
