"""What an engine works on at a time, by figures worked out by hand."""

from typing import Any

import pytest

from meds_openrlhf.config.schema import RolloutSettings
from meds_openrlhf.placement.engine_limits import EngineLimits, engine_limits
from meds_openrlhf.placement.inventory import GB
from tests.placement.clusters import QWEN, SHAPES, arguments

P = 7_615_616_512
H200 = 140.0


def limits_of(memory: float | None, model: str | None = QWEN, **changes: Any) -> EngineLimits:
    wanted = {name: changes.pop(name) for name in ("max_num_seqs", "max_num_batched_tokens") if name in changes}
    shape = None if model is None else SHAPES[model]
    return engine_limits(arguments(**changes), shape, RolloutSettings(**wanted), memory)


def held(tensor_parallel: int = 1, memory: float = H200) -> float:
    changes = {"vllm__gpu_memory_utilization": 0.9, "vllm__tensor_parallel_size": tensor_parallel}
    found = limits_of(memory, **changes).held
    assert found is not None
    return found


def test_the_cache_is_what_utilization_leaves() -> None:
    free = 0.9 * H200 * GB - 2 * P - 3 * GB
    # 28 layers x 4 heads x 128 x 2 bytes, keys and values
    assert held() == pytest.approx(free / (57344 * 4096))
    assert held(2) == pytest.approx((free + P) / (57344 / 2 * 4096))
    assert held(memory=16.0) == 0
    assert held(16) < held(8) * 1.02  # eight GPUs and four heads: every GPU stores one head


def limits(sequences: float | None, **changes: Any) -> tuple[int, int]:
    """The limits of an engine whose cache holds ``sequences`` of 4,096 tokens."""
    beside = 2 * P + 3 * GB
    memory = None if sequences is None else beside + sequences * 57344 * 4096
    found = limits_of(None if memory is None else memory / GB, vllm__gpu_memory_utilization=1.0, **changes)
    return found.max_num_seqs, found.max_num_batched_tokens


def test_engines_work_on_what_their_cache_holds_of_half_generated_sequences() -> None:
    assert limits(369.4) == (738, 16_384)
    assert limits(3000.0) == (1024, 16_384)  # vLLM's own limit on such a GPU
    assert limits(1.6) == (3, 6553)
    assert limits(0.1) == (1, 409)  # too small a cache, which the plan says
    assert limits(None) == limits(100.0, model=None) == (256, 8192)
    # Limits that the user sets hold.
    assert limits(369.4, max_num_seqs=64) == (64, 16_384)
    assert limits(369.4, max_num_batched_tokens=2048) == (738, 2048)
    assert limits(369.4, max_num_batched_tokens=512) == (512, 512)
    assert limits(None, max_num_seqs=10_000) == (10_000, 10_000)
