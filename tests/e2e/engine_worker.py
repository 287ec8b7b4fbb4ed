"""A real engine, its limits, and prompts that are aborted; run as a script, which prints what it saw as JSON.

python -m tests.e2e.engine_worker MODEL
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from meds_openrlhf.training.host import cpu

SEQUENCES, TOKENS, SAMPLES = 24, 512, 8


def main(model: str) -> None:
    cpu.install()
    import ray
    from openrlhf.trainer.ray.vllm_engine import create_vllm_engines
    from ray.util.placement_group import placement_group
    from transformers import AutoTokenizer
    from vllm import SamplingParams

    from meds_openrlhf.runtime.ray_connection import ray_connection
    from meds_openrlhf.training.step.engine import restartable_engines
    from meds_openrlhf.training.step.engine_fleet import EngineFleet

    with ray_connection(on_cpu=True, verbose=False):
        group = placement_group([{"GPU": 1, "CPU": 1}])
        with restartable_engines({}, max_num_seqs=SEQUENCES, max_num_batched_tokens=TOKENS):
            (engine,) = create_vllm_engines(
                1, 1, model, 0, False, False, True, 512, shared_pg=group, gpu_memory_utilization=0.5
            )
        fleet = EngineFleet([engine], print)
        tokenizer = fleet.share(AutoTokenizer.from_pretrained(model))

        def start(tokens: int) -> Any:
            sampling = SamplingParams(temperature=0.0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True)
            options = {"sampling_params": sampling, "max_length": 512, "hf_tokenizer": tokenizer}
            return fleet.generate(prompt="12+34=", label="46", images=None, num_samples=SAMPLES, **options)

        def answer(call: Any) -> list[int]:
            while not fleet.wait([call]):
                pass
            responses = fleet.responses(call)
            assert responses is not None
            return responses[0]["observation_tokens"].tolist()

        first = answer(start(20))
        long = [start(480) for _ in range(40)]  # 320 responses: most of them wait
        while not ray.get(engine.get_num_unfinished_requests.remote()):
            time.sleep(0.05)
        short = start(20)
        began = time.monotonic()
        fleet.cancel(long)
        seconds = time.monotonic() - began
        second = answer(short)
        left = ray.get(engine.get_num_unfinished_requests.remote())
        limits = ray.get(engine.__ray_call__.remote(limits_of))
    print(json.dumps({"limits": limits, "seconds": seconds, "left": left, "same": first == second}))


def limits_of(engine: Any) -> list[int]:
    scheduler = engine.llm.vllm_config.scheduler_config
    return [scheduler.max_num_seqs, scheduler.max_num_batched_tokens]


if __name__ == "__main__":
    main(sys.argv[1])
