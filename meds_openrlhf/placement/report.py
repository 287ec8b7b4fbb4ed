"""A plan with its memory estimate, for the output of `meds plan` and the warnings of `meds train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meds_openrlhf.placement.batches import listed
from meds_openrlhf.placement.inventory import GB, Node, plural, smallest_gpu_memory
from meds_openrlhf.placement.memory_estimate import (
    EngineLimits,
    Footprint,
    engine_limits,
    footprints,
    sequences_held,
    together,
)
from meds_openrlhf.placement.plan import Group, Plan
from meds_openrlhf.placement.recipe import Recipe
from meds_openrlhf.placement.sizing import Sizing

COUNTS = ("num_nodes", "num_gpus_per_node", "num_engines")  # suffixes of flags for counts


@dataclass(frozen=True)
class PlanReport:
    """A plan with its sizing and each role's footprint. Without footprints, ``unknown`` gives the reason.

    ``sequences`` is the number of full-length sequences in an engine's KV cache, None if it cannot be estimated.
    """

    plan: Plan
    sizing: Sizing
    recipe: Recipe
    footprints: Mapping[str, Footprint]
    gpu_memory_gb: float | None
    sequences: float | None
    unknown: str = ""

    @property
    def engine_limits(self) -> EngineLimits:
        """What an engine works on at a time."""
        return engine_limits(self.recipe, self.sequences)

    def peak_gb(self, group: Group) -> float | None:
        """Return the peak memory of a group's roles on one GPU in GB; one role works while the others rest."""
        return together([self.footprints[role] for role in group.roles]) / GB if self.footprints else None

    def on_node_gb(self, node: Node) -> float | None:
        """Return what sleeping and offloaded roles put into a node's memory, in GB; None if it cannot be estimated."""
        if not self.footprints:
            return None
        groups = [(group, group.nodes.count(node)) for group in self.plan.groups]
        return sum(ranks * self.footprints[role].on_node for group, ranks in groups for role in group.roles) / GB

    @property
    def overfull(self) -> list[str]:
        """One line for every group or node whose memory does not suffice, and for engines with too small a cache."""
        lines = []
        for group in self.plan.groups:
            peak, memory = self.peak_gb(group), self.gpu_memory_gb
            if peak is not None and memory is not None and peak > memory:
                needs = f"{' + '.join(group.roles)}: about {peak:.0f} GB on a GPU of {memory:g} GB"
                lines.append(f"{needs}. {self._advice(group)}")
        for node in self.plan.nodes:
            used, memory = self.on_node_gb(node), node.memory_gb
            if used is not None and memory is not None and used > memory:
                needs = (
                    f"{node.name}: about {used:.0f} GB of sleeping and offloaded states in {memory:.0f} GB of memory"
                )
                lines.append(f"{needs}. Use fewer ranks per node, mode split, or no ds.adam_offload")
        if self.sequences is not None and self.sequences < 1:
            advice = "Raise vllm.tensor_parallel_size or vllm.gpu_memory_utilization, or lower data.max_len"
            lines.append(f"the KV cache of an engine is too small for {self.recipe.max_len} tokens. {advice}")
        return lines

    def _advice(self, group: Group) -> str:
        if group.roles == ("engines",):
            return "Lower vllm.gpu_memory_utilization"
        size = "max_tokens_per_gpu" if self.recipe.batching.dynamic else "micro_batch_size"
        share = ", vllm.gpu_memory_utilization" if "engines" in group.roles else ""
        return f"Lower train.{size}, rollout.{size}{share} or data.max_len, set ds.adam_offload, or use more ranks"

    @property
    def idle(self) -> str:
        """The number of free GPUs that the plan does not use, and the reason if it is the batches; empty if none."""
        free = sum(int(node.free_gpus) for node in self.plan.nodes)
        if free <= self.plan.gpus:
            return ""
        stay = f"{free - self.plan.gpus} of {plural(free, 'free GPU')} are not used"
        is_given = any(value is not None and flag.endswith(COUNTS) for flag, value in self.recipe.given.items())
        has_cpus = sum(node.room_for_cpus for node in self.plan.nodes) > self.plan.cpus
        if is_given or self.sizing.mode == "flags" or not has_cpus:
            return stay
        batching = self.recipe.batching
        return f"{stay}: the batches ({batching}) divide among {listed(batching.even_counts())} ranks"


def report(plan: Plan, sizing: Sizing, recipe: Recipe) -> PlanReport:
    """Return the plan with its estimates, or with the reason why there are none."""
    memory = smallest_gpu_memory([node for group in plan.groups for node in group.nodes])
    models = dict.fromkeys(recipe.models.values())
    unknown = "; ".join(f"{found.name}: {found.source}" for found in models if found.shape is None)
    if memory is None:
        unknown = unknown or "Ray names no known accelerator type"
        return PlanReport(plan, sizing, recipe, {}, None, None, unknown)
    requests = {member.role: member for group in plan.groups for member in group.members}
    width, shape = requests["engines"].block_gpus, recipe.models["engines"].shape
    found = footprints(recipe, {role: member.gpus for role, member in requests.items()}, memory * GB, width)
    sequences = None if shape is None else sequences_held(recipe, shape, width, memory * GB)
    return PlanReport(plan, sizing, recipe, found, memory, sequences, unknown)
