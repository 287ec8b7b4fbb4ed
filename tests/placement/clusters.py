"""What the tests of placement share: nodes, recipes, and the sizes of the shipped recipes' models."""

from types import SimpleNamespace
from typing import Any

from meds_openrlhf.placement.batching import Batching
from meds_openrlhf.placement.inventory import Node
from meds_openrlhf.placement.model_shape import FoundShape, ModelShape
from meds_openrlhf.placement.plan import Plan
from meds_openrlhf.placement.roles import RoleRequest
from meds_openrlhf.training.openrlhf.access import parse_openrlhf_arguments

QWEN = "Qwen/Qwen2.5-Math-7B"
# From their config.json, which tests do not download.
SHAPES = {
    QWEN: ModelShape(28, 3584, 18944, 28, 4, 128, 152064, attention_bias=True),
    "Qwen/Qwen3-1.7B": ModelShape(28, 2048, 6144, 16, 8, 128, 151936, tied=True, head_norms=True),
    "Qwen/Qwen3-8B": ModelShape(36, 4096, 12288, 32, 8, 128, 151936, head_norms=True),
}


def found_shape(name: str, trusted: bool = False) -> FoundShape:
    """What `find_shape` returns where the models of the shipped recipes are cached, and nothing else is."""
    shape = SHAPES.get(name)
    return FoundShape(name, shape, "" if shape else "not readable")


def node(name: str, gpus: float, cpus: float, free_gpus: float | None = None, free_cpus: float | None = None) -> Node:
    """A node of GPUs with 140 GB, all free unless said."""
    free = gpus if free_gpus is None else free_gpus, cpus if free_cpus is None else free_cpus
    return Node(name, gpus, cpus, *free, gpu_memory_gb=140.0)


def request_of(plan: Plan, role: str) -> RoleRequest:
    """A role's request."""
    (found,) = (member for group in plan.groups for member in group.members if member.role == role)
    return found


# Settings of the shipped recipe of Qwen2.5-Math-7B.
SHIPPED = {
    "algo.advantage.estimator": "group_norm", "algo.kl.init_coef": 0, "reward.remote_url": "reward.py",
    "rollout.batch_size": 512, "rollout.n_samples_per_prompt": 16, "rollout.micro_batch_size": 4,
    "train.batch_size": 256, "train.micro_batch_size": 1, "data.max_len": 4096, "ds.zero_stage": 3,
    "actor.gradient_checkpointing_enable": True, "vllm.num_engines": 1, "actor.num_gpus_per_node": 1,
}  # fmt: skip
OF_ROLES = {
    "reference": {"algo.kl.init_coef": 0.01},
    "critic": {"algo.advantage.estimator": "gae"},
    "reward": {"reward.remote_url": None, "reward.model_name_or_path": "some/reward"},
}


def arguments(*roles: str, **flags: Any) -> SimpleNamespace:
    """OpenRLHF's arguments of the shipped recipe with ``roles`` beside policy and engines, changed by ``flags``.

    A flag is written with two underscores for its dot.
    """
    changed = {flag: value for role in roles for flag, value in OF_ROLES[role].items()}
    given = {name.replace("__", "."): value for name, value in flags.items()}
    return parse_openrlhf_arguments({"actor.model_name_or_path": QWEN, **SHIPPED, **changed, **given})


def models(*roles: str, name: str | None = QWEN) -> dict[str, FoundShape]:
    """The model of policy, engines and ``roles``; None is one whose sizes are not known."""
    found = found_shape("some/model" if name is None else name)
    return dict.fromkeys(("policy", "engines", *roles), found)


def batching(**changes: Any) -> Batching:
    """Batches of the shipped recipe's sizes, changed."""
    sizes = {"prompts": 512, "samples": 16, "rollout_micro_batch": 4, "train_batch": 256, "train_micro_batch": 1}
    return Batching(**{**sizes, **changes})
