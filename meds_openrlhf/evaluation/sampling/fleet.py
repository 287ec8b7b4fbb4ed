"""Engines on a Ray cluster: their placement, start, and results."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from meds_openrlhf.evaluation.samples import Sample
from meds_openrlhf.evaluation.sampling.draw import Block, EngineLostError, EngineSettings, EvaluationLostError
from meds_openrlhf.evaluation.sampling.engine import SamplingEngine
from meds_openrlhf.placement.inventory import Node
from meds_openrlhf.placement.plan import Plan, RoleRequest, make_plan
from meds_openrlhf.placement.shortage import Shortage

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


class RayFleet:
    """Started engines, by number, that `draw` keeps busy."""

    def __init__(self, engines: dict[int, Any]) -> None:
        self.engines = engines

    def load(self, settings: EngineSettings) -> None:
        """Give all engines another model of the same architecture. Raises EvaluationLostError if none is left."""
        for number, loading in [(n, handle.load.remote(settings)) for n, handle in self.engines.items()]:
            try:
                ray.get(loading)
            except ray.exceptions.RayActorError:
                del self.engines[number]
        if not self.engines:
            raise EvaluationLostError("every engine was lost before it had the next model")

    def start(self, engine: int, block: Block) -> Hashable:
        """Start a block on an engine without waiting; returns a ticket for its result."""
        ticket: Hashable = self.engines[engine].sample.remote(block)
        return ticket

    def wait(self, tickets: Collection[Hashable]) -> Hashable:
        """Wait for the next of the tickets. Raises EvaluationLostError if none finishes within `STALL_SECONDS`."""
        done, _ = ray.wait(list(tickets), num_returns=1, timeout=STALL_SECONDS)
        if not done:
            raise EvaluationLostError(f"no engine finished anything within {STALL_SECONDS / 60:g} minutes")
        ticket: Hashable = done[0]
        return ticket

    def samples(self, ticket: Hashable) -> list[Sample]:
        """The samples of a finished block. Raises EngineLostError if its engine is lost."""
        try:
            samples: list[Sample] = ray.get(ticket)
            return samples
        except ray.exceptions.RayActorError as error:
            raise EngineLostError(_reason(error)) from error


@contextmanager
def running_engines(
    group: PlacementGroup, plan: Plan, settings: EngineSettings, tell: Callable[[str], None]
) -> Iterator[RayFleet]:
    """Run the plan's engines with a model until the block ends; then their GPUs are free for the next model.

    Raises EvaluationLostError if an engine cannot start, or all are lost while they start.
    """
    size = settings.tensor_parallel
    blocks = [list(range(first, first + size)) for first in range(0, plan.gpus, size)]
    share = 1 if size == 1 else 0  # the GPU of its bundle; if it has several bundles, vLLM's workers take their GPUs
    handles = {}
    for number, bundles in enumerate(blocks):
        strategy = PlacementGroupSchedulingStrategy(group, bundles[0], placement_group_capture_child_tasks=True)
        options = {"num_cpus": share, "num_gpus": share, "scheduling_strategy": strategy}
        handles[number] = ray.remote(SamplingEngine).options(**options).remote()
    try:
        starting = {handles[number].start.remote(settings, bundles): number for number, bundles in enumerate(blocks)}
        started = _started(starting, tell)
        yield RayFleet({number: handles[number] for number in started})
        ray.wait([handles[n].stop.remote() for n in started], num_returns=len(started), timeout=STOP_SECONDS)
    finally:
        for handle in handles.values():
            ray.kill(handle)


def _started(starting: dict[Any, int], tell: Callable[[str], None]) -> list[int]:
    """The engines that have started. If an engine raises an error, all fail: the others would raise it too."""
    left, started, deadline = dict(starting), [], time.monotonic() + START_SECONDS
    while left:
        done, _ = ray.wait(list(left), num_returns=1, timeout=max(deadline - time.monotonic(), 0.0))
        if not done:
            late = ", ".join(map(str, sorted(left.values())))
            raise EvaluationLostError(f"engine {late} did not start within {START_SECONDS / 60:g} minutes")
        number = left.pop(done[0])
        try:
            ray.get(done[0])
            started.append(number)
        except ray.exceptions.RayActorError as error:
            tell(f"engine {number} was lost while it started ({_reason(error)})")
        except ray.exceptions.RayTaskError as error:
            cause = str(error.cause).strip().splitlines() or [type(error.cause).__name__]
            raise EvaluationLostError(f"engine {number} could not start: {cause[0]} (--verbose shows more)") from error
    if not started:
        raise EvaluationLostError("every engine was lost while it started (--verbose shows more)")
    return sorted(started)


def _reason(error: BaseException) -> str:
    """Ray's message about a dead actor, without its list of possible causes."""
    text = " ".join(str(error).split())
    detail = text.split("Worker exit detail: ")[-1].split("The actor died because of an error")[-1]
    return detail.split(" Some common causes")[0].split(" There are some potential")[0].strip(" .")[:200]
