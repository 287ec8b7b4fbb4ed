"""A plan with its memory estimate, for the output of `meds plan` and the warnings of `meds train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meds_openrlhf.placement.inventory import Node, plural, smallest_gpu_memory
from meds_openrlhf.placement.memory_estimate import (
    GB,
    EngineLimits,
    Footprint,
    engine_limits,
    footprints,
    sequences_held,
    together,
)
from meds_openrlhf.placement.plan import Group, Plan
from meds_openrlhf.placement.recipe import Recipe
from meds_openrlhf.placement.sizing import Sizing, listed

COUNTS = ("num_nodes", "num_gpus_per_node", "num_engines")  # suffixes of flags for counts
FULL_UTILIZATION = 0.9  # share of a GPU for an engine above which raising it does not help


@dataclass(frozen=True)
class PlanReport:
    """A plan with its sizing and each role's footprint. Without footprints, ``unknown`` gives the reason."""

    plan: Plan
    sizing: Sizing
    recipe: Recipe
    footprints: Mapping[str, Footprint]
    gpu_memory_gb: float | None
    unknown: str = ""

    @property
    def sequences(self) -> float | None:
        """The number of full-length sequences in an engine's KV cache; None if it cannot be estimated."""
        request, shape = self.plan.request_of("engines"), self.recipe.models["engines"].shape
        if request is None or shape is None or self.gpu_memory_gb is None:
            return None
        return sequences_held(self.recipe, shape, request.block_gpus, self.gpu_memory_gb * GB)

    @property
    def engine_limits(self) -> EngineLimits:
        """What an engine works on at a time."""
        return engine_limits(self.recipe, self.sequences)

    def peak_gb(self, group: Group) -> float | None:
        """Return the peak memory of a group's roles on one GPU in GB; one role works while the others rest."""
        parts = [self.footprints[role] for role in group.roles if role in self.footprints]
        return together(parts) / GB if parts else None

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
                lines.append(f"{needs}; {self._ways_to_shrink(group)}")
        for node in self.plan.nodes:
            used, memory = self.on_node_gb(node), node.memory_gb
            if used is not None and memory is not None and used > memory:
                lines.append(
                    f"{node.name}: about {used:.0f} GB of sleeping and offloaded states, in {memory:.0f} GB that "
                    f"Ray's object store leaves; {self._ways_to_empty_nodes()}"
                )
        if self.sequences is not None and self.sequences < 1:
            lines.append(
                "an engine's KV cache holds no sequence of data.max_len "
                f"{self.recipe.max_len} tokens; {self._ways_to_a_larger_cache()}"
            )
        return lines

    @property
    def idle(self) -> str:
        """The number of free GPUs that the plan does not use, and the reason; empty if it uses all."""
        free = sum(int(node.free_gpus) for node in self.plan.nodes)
        if free <= self.plan.gpus:
            return ""
        stay = f"{free - self.plan.gpus} of {plural(free, 'free GPU')} stay free"
        given = [flag for flag, value in self.recipe.given.items() if value is not None and flag.endswith(COUNTS)]
        if given or self.sizing.mode == "flags":
            return f"{stay}: the counts that are given ask for no more"
        cpus = sum(node.room_for_cpus for node in self.plan.nodes) - self.plan.cpus
        if cpus < 1:
            return f"{stay}: no CPU is left for another"
        responses = f"{self.recipe.samples} responses by {self.recipe.rollout_micro_batch}"
        batches = f"train.batch_size {self.recipe.train_batch} and {responses}"
        return f"{stay}: {batches} can be split over {listed(self.recipe.even_counts())} ranks"

    @property
    def spread_thin(self) -> str:
        """That each policy rank gets one response of a mini-batch, if it does; empty if it gets more.

        Responses differ in length by more than mini-batches do: of log-normal ones, cut at three times their mean, the
        ranks would use 29 % of their time.
        """
        policy = self.plan.request_of("policy")
        ranks = 0 if policy is None else policy.gpus // (self.recipe.context_parallel * self.recipe.tensor_parallel)
        if ranks < 2 or self.recipe.train_batch // ranks > 1:
            return ""
        what = f"each of {ranks} policy ranks gets one response of a mini-batch"
        return f"{what} and waits for the longest; raise train.batch_size"

    def _ways_to_shrink(self, group: Group) -> str:
        recipe, trained = self.recipe, {"policy", "critic"} & set(group.roles)
        sizes = ["train.max_tokens_per_gpu", "rollout.max_tokens_per_gpu"] if recipe.dynamic_batches else []
        if not recipe.dynamic_batches:
            sizes += ["train.micro_batch_size"] if trained and recipe.train_micro_batch > 1 else []
            sizes += ["rollout.micro_batch_size"] if recipe.rollout_micro_batch > 1 else []
        lower = [*sizes, "data.max_len"] if group.roles != ("engines",) else []
        if "engines" in group.roles:
            lower.append("vllm.gpu_memory_utilization")
        ways = [f"lower {' or '.join(lower)}"]
        if trained and not recipe.adam_offload:
            ways.append("set ds.adam_offload")
        if group.roles != ("engines",) and recipe.zero_stage:
            ways.append("give it more ranks")
        return ", or ".join(ways)

    def _ways_to_empty_nodes(self) -> str:
        offloaded = ["no ds.adam_offload"] if self.recipe.adam_offload else []
        asleep = ["meds.placement.mode split"] if self.recipe.engines_sleep else []
        return ", or ".join([*offloaded, *asleep, "more nodes with fewer ranks each"])

    def _ways_to_a_larger_cache(self) -> str:
        request, shape = self.plan.request_of("engines"), self.recipe.models["engines"].shape
        largest = max(int(node.gpus) for node in self.plan.nodes)
        now = request.block_gpus if request else 1
        wider = [size for size in range(now + 1, largest + 1) if shape is not None and shape.splits_over(size)]
        ways = [f"raise vllm.tensor_parallel_size to {wider[0]}"] if wider else []
        if self.recipe.gpu_memory_utilization < FULL_UTILIZATION:
            ways.append("raise vllm.gpu_memory_utilization")
        return ", or ".join([*ways, "lower data.max_len"])


def report(plan: Plan, sizing: Sizing, recipe: Recipe) -> PlanReport:
    """Return the plan with its estimates, or with the reason why there are none."""
    memory = smallest_gpu_memory([node for group in plan.groups for node in group.nodes])
    strangers = dict.fromkeys(found for found in recipe.models.values() if found.shape is None)
    unknown = "; ".join(f"{found.name}: {found.source}" for found in strangers)
    if memory is None:
        unknown = unknown or "Ray names no accelerator type that is known"
    found = None
    if memory is not None and not strangers:
        ranks = {role: request.gpus for role in recipe.roles if (request := plan.request_of(role)) is not None}
        engines = plan.request_of("engines")
        found = footprints(recipe, ranks, memory * GB, engines.block_gpus if engines else 1)
    return PlanReport(plan, sizing, recipe, found or {}, memory, unknown)
