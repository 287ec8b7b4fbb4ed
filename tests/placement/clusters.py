"""What the tests of placement share: nodes, recipes, and the sizes of the shipped recipes' models."""

from dataclasses import fields
from typing import Any

from meds_openrlhf.placement.inventory import Node
from meds_openrlhf.placement.model_shape import FoundShape, ModelShape
from meds_openrlhf.placement.plan import Plan, RoleRequest
from meds_openrlhf.placement.recipe import Batching, Recipe

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


def recipe(roles: tuple[str, ...] = ("policy", "engines"), model: str | None = QWEN, **changes: Any) -> Recipe:
    """The shipped recipe of Qwen2.5-Math-7B, changed; ``model=None`` is one whose sizes are not known."""
    found = found_shape("some/model" if model is None else model)
    sizes = {field.name: changes.pop(field.name) for field in fields(Batching) if field.name in changes}
    settings: dict[str, Any] = {"zero_stage": 3, "checkpointing": True, "forward_tokens": 16384, **changes}
    return Recipe(models=dict.fromkeys(roles, found), batching=batching(**sizes), **settings)


def batching(**changes: Any) -> Batching:
    """Batches of the shipped recipe's sizes, changed."""
    sizes = {"prompts": 512, "samples": 16, "rollout_micro_batch": 4, "train_batch": 256, "train_micro_batch": 1}
    return Batching(**{**sizes, **changes})
