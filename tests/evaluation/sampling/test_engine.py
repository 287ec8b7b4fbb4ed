"""What an engine process shows vLLM."""

from typing import Any

import pytest
import ray
from meds_openrlhf.evaluation.sampling.engine import SamplingEngine

from meds_openrlhf.evaluation.sampling.blocks import EngineSettings
from meds_openrlhf.evaluation.settings import Settings

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.mark.parametrize("noset", ["", "1"], ids=["Ray sets it", "Ray does not"])
def test_each_engine_sees_one_gpu_of_its_own(noset: str) -> None:
    class Engine(SamplingEngine):
        """With a vLLM that answers with the GPUs that it would use."""

        async def seen_by_vllm(self, settings: EngineSettings) -> Any:
            import os
            import sys
            from types import SimpleNamespace

            sys.modules["vllm"] = SimpleNamespace(  # type: ignore[assignment]
                AsyncEngineArgs=lambda **_: None,
                AsyncLLMEngine=SimpleNamespace(from_engine_args=lambda _: os.environ.get("CUDA_VISIBLE_DEVICES")),
            )
            await self.start(settings, bundles=[0])
            return self._llm

    settings = EngineSettings("model", None, 1, 64, on_cpu=False, sampling=Settings("model", "", 1.0, 1.0, 0, 8, {}))
    environment = {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": noset}}
    options = {"num_gpus": 1, "num_cpus": 1, "runtime_env": environment}
    engines = [ray.remote(Engine).options(**options).remote() for _ in range(3)]
    seen = ray.get([engine.seen_by_vllm.remote(settings) for engine in engines])
    assert len(set(seen)) == 3
    assert set(seen) <= set("01234567")
