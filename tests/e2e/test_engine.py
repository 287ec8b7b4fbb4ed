"""A real vLLM engine on the CPU: it has the limits that it is given, and stops generating what is not needed."""

import time
from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf.runtime.devices import CPU_ENVIRONMENT
from meds_openrlhf.training.openrlhf import cpu
from tests.e2e.conftest import TOKEN
from tests.processes import wait_until

SEQUENCES, TOKENS, SAMPLES = 24, 512, 8


def test_an_engine_has_its_limits_and_aborts_prompts(
    assets: Path, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RAY_ADDRESS": cluster, **CPU_ENVIRONMENT}.items():
        monkeypatch.setenv(name, value)  # which `install` would leave to the runs of other tests
    cpu.install()
    import ray
    from openrlhf.trainer.ray.vllm_engine import create_vllm_engines
    from ray.util.placement_group import placement_group
    from vllm import SamplingParams

    from meds_openrlhf.runtime.ray_connection import authentication, ray_connection
    from meds_openrlhf.training.step.engine import restartable_engines
    from meds_openrlhf.training.step.engine_fleet import EngineFleet

    def start(tokens: int) -> Any:
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True)
        options = {"sampling_params": sampling, "max_length": 512}
        return fleet.generate(prompt="12+34=", label="46", images=None, num_samples=SAMPLES, **options)

    def answer(call: Any) -> list[int]:
        wait_until(lambda: bool(fleet.wait([call])))
        responses = fleet.responses(call)
        assert responses is not None
        return responses[0]["observation_tokens"].tolist()

    with authentication(TOKEN), ray_connection(on_cpu=True, verbose=False):
        group = placement_group([{"GPU": 1, "CPU": 1}])
        with restartable_engines({}, max_num_seqs=SEQUENCES, max_num_batched_tokens=TOKENS):
            (engine,) = create_vllm_engines(
                1, 1, str(assets / "policy"), 0, False, False, True, 512, shared_pg=group, gpu_memory_utilization=0.5
            )
        fleet = EngineFleet([engine], print)
        first = answer(start(20))
        long = [start(480) for _ in range(40)]  # 320 responses: most of them wait
        wait_until(lambda: ray.get(engine.get_num_unfinished_requests.remote()) > 0)
        short = start(20)
        began = time.monotonic()
        fleet.cancel(long)
        assert time.monotonic() - began < 30  # within engine_fleet.CANCEL_SECONDS
        assert answer(short) == first
        # Nothing of the 153,600 tokens that were asked for is generated any more.
        assert ray.get(engine.get_num_unfinished_requests.remote()) == 0
        scheduler = ray.get(engine.__ray_call__.remote(lambda self: self.llm.vllm_config.scheduler_config))
        assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) == (SEQUENCES, TOKENS)
