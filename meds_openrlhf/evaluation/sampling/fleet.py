"""Engines on a Ray cluster: their placement, and the samples that they draw."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import ray
from ray.util import ActorPool
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from meds_openrlhf.evaluation.samples import Sample
from meds_openrlhf.evaluation.sampling.blocks import Block, EngineSettings
from meds_openrlhf.evaluation.sampling.engine import SamplingEngine
from meds_openrlhf.placement.inventory import Node
from meds_openrlhf.placement.plan import Plan, RoleRequest, make_plan
from meds_openrlhf.placement.shortage import Shortage
from meds_openrlhf.runtime.errors import RunLostError

START_SECONDS = 1800.0
STOP_SECONDS = 60.0
# The longest responses take minutes; if no engine finishes anything for this long, they hang.
STALL_SECONDS = 3600.0


def plan_engines(nodes: Sequence[Node], engines: int | None, tensor_parallel: int, at_most: int) -> Plan:
    """Plan for ``engines``, or if None for as many as there is room for, up to ``at_most``. An engine is on one node.

    Raises Shortage if there is no room for them, or if None for a single engine.
    """
    room = sum(node.room // tensor_parallel for node in nodes)
    count = max(1, min(room, at_most)) if engines is None else engines
    try:
        return make_plan([RoleRequest("engines", count, tensor_parallel)], nodes, memory_shards=0, controller_cpus=0)
    except Shortage as shortage:
        raise Shortage(shortage.text, "Lower --engines or --tensor-parallel, or add nodes.") from None


def draw(
    group: PlacementGroup, plan: Plan, settings: EngineSettings, blocks: Sequence[Block]
) -> Generator[tuple[str, list[Sample]], None, None]:
    """Start the plan's engines and yield every block's benchmark and samples when it finishes.

    At the end, the engines' GPUs are free for the next model. Raises RunLostError if an engine cannot start, is lost or
    hangs.
    """
    size = settings.tensor_parallel
    bundles = [list(range(first, first + size)) for first in range(0, plan.gpus, size)]
    share = 1 if size == 1 else 0  # the GPU of its bundle; if it has several bundles, vLLM's workers take their GPUs
    engines = []
    for of_engine in bundles:
        strategy = PlacementGroupSchedulingStrategy(group, of_engine[0], placement_group_capture_child_tasks=True)
        options = {"num_cpus": share, "num_gpus": share, "scheduling_strategy": strategy}
        engines.append(ray.remote(SamplingEngine).options(**options).remote())
    try:
        starting = [engine.start.remote(settings, own) for engine, own in zip(engines, bundles)]
        ray.get(starting, timeout=START_SECONDS)
        pool = ActorPool(engines * settings.in_flight)  # each as often as it takes blocks at a time
        for block in blocks:
            pool.submit(lambda engine, block: engine.sample.remote(block), block)
        while pool.has_next():
            yield pool.get_next_unordered(timeout=STALL_SECONDS)
        ray.wait([engine.stop.remote() for engine in engines], num_returns=len(engines), timeout=STOP_SECONDS)
    except (TimeoutError, ray.exceptions.RayActorError, ray.exceptions.RayTaskError) as error:
        cause = " ".join(str(getattr(error, "cause", error)).split()).split("Worker exit detail: ")[-1]
        problem = f"an engine failed, was lost or did not answer in time ({cause[:200]}; --verbose shows more)"
        raise RunLostError(f"{problem}. Run the same command again to sample what is missing.") from error
    finally:
        for engine in engines:
            ray.kill(engine)
