"""Where engines go, what they show vLLM, and that they draw every block once."""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from meds_openrlhf.evaluation import fleet
from meds_openrlhf.evaluation.fleet import SamplingEngine, plan_engines
from meds_openrlhf.evaluation.request import Problem, Settings
from meds_openrlhf.evaluation.samples import Block, EngineSettings, Sample
from meds_openrlhf.placement.inventory import Node, Shortage
from meds_openrlhf.placement.ray_cluster import inventory, release, reserve
from meds_openrlhf.runtime.errors import RunLostError
from tests.placement.clusters import node

TWO_NODES = [node("a", 8, 64), node("b", 8, 64)]


def engines(nodes: list[Node], count: int | None, tensor_parallel: int, at_most: int = 1000) -> int:
    plan = plan_engines(nodes, count, tensor_parallel, at_most)
    for first in range(0, plan.gpus, tensor_parallel):  # an engine's bundles are on one node
        assert len({node.name for node in plan.groups[0].nodes[first : first + tensor_parallel]}) == 1
    return plan.gpus // tensor_parallel


def test_as_many_as_there_is_room_for() -> None:
    assert [engines(TWO_NODES, None, size) for size in (1, 3, 8)] == [16, 4, 2]
    assert engines([Node("a", 8, 64, free_gpus=3, free_cpus=64)], None, 1) == 3
    assert engines([Node("a", 8, 64, free_gpus=0, free_cpus=64)], None, 1) == 1  # which waits
    assert engines(TWO_NODES, None, 1, at_most=5) == 5  # no more than there are blocks
    assert engines(TWO_NODES, 2, 4, at_most=1) == 2  # unless they are asked for


@pytest.mark.parametrize(
    ("nodes", "count", "tensor_parallel", "message"),
    [
        (TWO_NODES, 17, 1, "17 GPUs for engines and 17 CPUs; free: 2 nodes with 8 GPUs and 64 CPUs each. Lower --"),
        (TWO_NODES, None, 16, "1 x 16 GPUs on one node for engines and 16 CPUs; free:"),
        ([node("a", 0, 8)], None, 1, "1 GPU for engines and 1 CPU; free: a with 0 GPUs and 8 CPUs. Lower --e"),
    ],
)
def test_a_cluster_without_room(nodes: list[Node], count: int | None, tensor_parallel: int, message: str) -> None:
    with pytest.raises(Shortage) as lack:
        plan_engines(nodes, count, tensor_parallel, at_most=1000)
    assert message in str(lack.value)


class PlayedEngine:
    """Says which process drew a block, and how many blocks that had; does as the model's name says."""

    async def start(self, settings: EngineSettings, bundles: list[int]) -> None:
        self._does, self._running, self._full = settings.model, 0, asyncio.Event()
        if self._does == "fail":
            raise ValueError("no such model")

    async def sample(self, block: Block) -> tuple[str, list[Sample]]:
        if self._does == "die":
            os._exit(1)
        self._running += 1
        running = self._running
        if running == 10:
            self._full.set()
        await self._full.wait()  # so no block is done before this engine has as many as it takes
        await asyncio.sleep(0.01)
        self._running -= 1
        samples = [Sample(block.problem.id, i, str(os.getpid()), running, False, None, False) for i in block.indices]
        return block.benchmark, samples

    async def stop(self) -> None:
        pass


BLOCKS = [Block("b", Problem(f"p{number}", "", ""), (1,), (0, 1)) for number in range(60)]


def drawn_by(does: str) -> Iterator[tuple[str, list[Sample]]]:
    """Two engines, each of which takes ten blocks at a time."""
    settings = EngineSettings(does, None, 1, 64, on_cpu=True, sampling=Settings("", "", 1.0, 1.0, 0, 8, {}))
    plan = plan_engines(inventory(), 2, 1, at_most=60)
    groups = reserve(plan, timeout_seconds=60)
    try:
        yield from fleet.draw(groups["engines"], plan, settings, BLOCKS)
    finally:
        release(groups)


@pytest.mark.usefixtures("ray_cluster")
def test_every_block_is_drawn_once_by_engines_that_stay_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "SamplingEngine", PlayedEngine)
    found = [(benchmark, sample) for benchmark, samples in drawn_by("sample") for sample in samples]
    drawn = Counter((benchmark, sample.problem, sample.index) for benchmark, sample in found)
    assert drawn == Counter(("b", block.problem.id, index) for block in BLOCKS for index in block.indices)
    assert len({sample.text for _, sample in found}) == 2
    assert max(sample.tokens for _, sample in found) == 10


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(("does", "reason"), [("fail", "no such model"), ("die", "exit")])
def test_an_engine_that_is_lost_ends_the_evaluation(does: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "SamplingEngine", PlayedEngine)
    with pytest.raises(RunLostError, match=rf"an engine failed, was lost.*{reason}.*Run the same command again"):
        list(drawn_by(does))


@pytest.mark.usefixtures("ray_cluster")
def test_each_engine_sees_one_gpu_of_its_own_whether_or_not_ray_sets_it() -> None:
    class Engine(SamplingEngine):
        """With a vLLM that answers with the GPUs that it would use."""

        async def seen_by_vllm(self, settings: EngineSettings) -> Any:
            sys.modules["vllm"] = SimpleNamespace(  # type: ignore[assignment]
                AsyncEngineArgs=lambda **_: None,
                AsyncLLMEngine=SimpleNamespace(from_engine_args=lambda _: os.environ.get("CUDA_VISIBLE_DEVICES")),
            )
            await self.start(settings, bundles=[0])
            return self._llm

    settings = EngineSettings("model", None, 1, 64, on_cpu=False, sampling=Settings("model", "", 1.0, 1.0, 0, 8, {}))
    engines = []
    for noset in ("", "1"):
        environment = {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": noset}}
        options = {"num_gpus": 1, "num_cpus": 1, "runtime_env": environment}
        engines += [ray.remote(Engine).options(**options).remote() for _ in range(2)]
    seen = ray.get([engine.seen_by_vllm.remote(settings) for engine in engines])
    assert len(set(seen)) == 4
    assert set(seen) <= set("01234567")
