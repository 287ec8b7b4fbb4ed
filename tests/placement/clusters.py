"""What the tests of placement share: nodes, recipes, and models whose sizes are built in."""

from typing import Any

from meds_openrlhf.placement.inventory import Node
from meds_openrlhf.placement.model_shape import KNOWN, FoundShape
from meds_openrlhf.placement.recipe import Recipe

QWEN = "Qwen/Qwen2.5-Math-7B"


def node(name: str, gpus: float, cpus: float, free_gpus: float | None = None, free_cpus: float | None = None) -> Node:
    """A node of GPUs with 140 GB, all free unless said."""
    return Node(
        name,
        gpus,
        cpus,
        free_gpus=gpus if free_gpus is None else free_gpus,
        free_cpus=cpus if free_cpus is None else free_cpus,
        gpu_memory_gb=140.0,
    )


def recipe(roles: tuple[str, ...] = ("policy", "engines"), model: str | None = QWEN, **changes: Any) -> Recipe:
    """The shipped recipe of Qwen2.5-Math-7B, changed; ``model=None`` is one whose sizes are not known."""
    found = (
        FoundShape("some/model", None, "not readable") if model is None else FoundShape(model, KNOWN[model], "built in")
    )
    settings: dict[str, Any] = {
        "zero_stage": 3,
        "checkpointing": True,
        "forward_tokens": 16384,
        "train_batch": 256,
        "samples": 8192,
        "rollout_micro_batch": 4,
        **changes,
    }
    return Recipe(roles=roles, models=dict.fromkeys(roles, found), **settings)
