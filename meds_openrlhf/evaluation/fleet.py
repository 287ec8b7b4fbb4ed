"""vLLM engines on a Ray cluster: their placement, and the judged samples that they draw from blocks of prompts.

An engine runs vLLM's asynchronous engine with one request per sample. All its blocks share vLLM's running batch: a
finished request immediately makes room for the next, from any block, and a block's longest sample delays only its own
block. The requests of a problem share the prompt's part of the KV cache. Answers are judged in the engine's process, so
that judging scales with the number of engines.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator, Sequence
from typing import Any

import ray
from ray.util import ActorPool
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from meds_openrlhf.evaluation.samples import Block, EngineSettings, Sample, sample_seed
from meds_openrlhf.placement.inventory import Node, Shortage
from meds_openrlhf.placement.plan import Plan, make_plan
from meds_openrlhf.placement.roles import RoleRequest
from meds_openrlhf.runtime.errors import RunLostError
from meds_openrlhf.runtime.processes import end_children_with_this_process

START_SECONDS = 1800.0
STOP_SECONDS = 60.0
# The longest responses take minutes; if no engine finishes anything for this long, they hang.
STALL_SECONDS = 3600.0


class SamplingEngine:
    """An engine, for use as a Ray actor."""

    async def start(self, settings: EngineSettings, bundles: list[int]) -> None:
        """Load the model. ``bundles`` are the engine's bundle indices in its placement group."""
        import vllm

        from meds_openrlhf.rewards.grading import answer_environment

        end_children_with_this_process()
        self._settings = settings
        os.environ.update(answer_environment(settings.sampling.answer_pattern))
        if not settings.on_cpu:
            if settings.tensor_parallel > 1:
                _let_vllm_place_workers(bundles)
            else:
                # Show vLLM the one GPU that Ray gave this process; RAY_EXPERIMENTAL_NOSET_... keeps Ray from doing it.
                os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, ray.get_gpu_ids()))
        self._llm: Any = vllm.AsyncLLMEngine.from_engine_args(vllm.AsyncEngineArgs(**_engine_arguments(settings)))

    async def sample(self, block: Block) -> tuple[str, list[Sample]]:
        """Draw and judge the block's samples; returns its benchmark and the samples."""
        outputs = await asyncio.gather(*(self._respond(block, index) for index in block.indices))
        return block.benchmark, await asyncio.to_thread(_judge, block, outputs)

    async def stop(self) -> None:
        """Shut down vLLM, so that its GPU memory is free when this returns."""
        self._llm.shutdown()

    async def _respond(self, block: Block, index: int) -> Any:
        """vLLM's completion for one sample."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        given = self._settings.sampling
        parameters = SamplingParams(
            temperature=given.temperature,
            top_p=given.top_p,
            seed=sample_seed(given.seed, block.problem.id, index),
            max_tokens=min(given.max_tokens, self._settings.max_model_len - len(block.tokens)),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        name = f"{block.benchmark}-{block.problem.id}-{index}"
        async for output in self._llm.generate({"prompt_token_ids": list(block.tokens)}, parameters, name):
            final = output
        return final.outputs[0]


def _engine_arguments(settings: EngineSettings) -> dict[str, Any]:
    backend = "uni" if settings.tensor_parallel == 1 else "mp" if settings.on_cpu else "ray"
    # On a CPU, vLLM cannot restore the random state of a seeded request, which prefill in chunks requires.
    whole_prompts = {"enable_chunked_prefill": False, "max_num_batched_tokens": max(settings.max_model_len, 2048)}
    return {
        "model": settings.model,
        "revision": settings.revision,
        "trust_remote_code": settings.trust_remote_code,
        "dtype": "float32" if settings.on_cpu else "bfloat16",  # as in training
        "tensor_parallel_size": settings.tensor_parallel,
        "distributed_executor_backend": backend,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.sequences,
        "enable_prefix_caching": True,
        "enforce_eager": settings.on_cpu,
        "enable_log_requests": False,
        "disable_log_stats": True,
        **(whole_prompts if settings.on_cpu else {}),
    }


def _let_vllm_place_workers(bundles: list[int]) -> None:
    """Let vLLM start an actor for each GPU in the engine's bundles, as under OpenRLHF; this process has no GPU."""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ["VLLM_RAY_PER_WORKER_GPUS"] = "1"
    os.environ["VLLM_RAY_BUNDLE_INDICES"] = ",".join(map(str, bundles))
    os.environ.setdefault("RAY_ADDRESS", ray.get_runtime_context().gcs_address)


def _judge(block: Block, outputs: list[Any]) -> list[Sample]:
    from meds_openrlhf.rewards.grading import verdict

    judged = [verdict(output.text, block.problem.answer) for output in outputs]
    return [
        Sample(
            problem=block.problem.id,
            index=index,
            text=output.text,
            tokens=len(output.token_ids),
            truncated=output.finish_reason == "length",
            answer=answer,
            right=right,
        )
        for index, output, (answer, right) in zip(block.indices, outputs, judged)
    ]


def plan_engines(nodes: Sequence[Node], engines: int | None, tensor_parallel: int, at_most: int) -> Plan:
    """Plan for ``engines`` (None: as many as fit, up to ``at_most``). An engine is on one node.

    Raises Shortage if there is no room for them, or if None for a single engine.
    """
    room = sum(node.room() // tensor_parallel for node in nodes)
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
