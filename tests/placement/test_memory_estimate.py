"""Estimates against figures worked out by hand, and how they move with the settings."""

from typing import Any

import pytest

from meds_openrlhf.placement.memory_estimate import GB, Footprint, engine_limits, footprints, together
from tests.placement.clusters import recipe

P = 7_615_616_512
H200 = 140 * GB


def footprint(role: str, ranks: int = 8, tensor_parallel: int = 1, **changes: Any) -> Footprint:
    roles = ("policy", "engines", "reference", "critic")
    counts = dict.fromkeys(roles, ranks)
    return footprints(recipe(roles, **changes), counts, H200, tensor_parallel=tensor_parallel)[role]


def peak(role: str = "policy", **changes: Any) -> float:
    return footprint(role, **changes).peak / GB


def test_the_states_of_zero_are_deepspeeds_own_figures() -> None:
    work = peak(zero_stage=2, adam_offload=True) - 2 * P / GB  # what does not depend on the states
    buckets = 2e9 / GB
    # 2 P + 18 P / W: deepspeed.runtime.zero.stage_1_and_2.estimate_zero2_model_states_mem_needs
    assert peak(zero_stage=2) == pytest.approx(work + (2 * P + 18 * P / 8) / GB)
    assert peak(zero_stage=1) == pytest.approx(work + (4 * P + 16 * P / 8) / GB)
    assert peak(zero_stage=0) == pytest.approx(work + (20 * P) / GB)
    # 18 P / W with the step's copy (here whole: a share of less than 1e9), and up to 1e9 gathered parameters
    assert peak(zero_stage=3) == pytest.approx(work + (20 * P / 8 + 2e9) / GB)
    assert peak(zero_stage=3, adam_offload=True) == pytest.approx(work + (2 * P / 8 + 2e9) / GB)
    assert work > buckets


def test_what_makes_a_rank_larger_or_smaller() -> None:
    plain = peak()
    assert peak(ranks=32) < plain < peak(ranks=4)
    assert peak(gradient_bytes=4) == pytest.approx(plain + 2 * P / 8 / GB)
    assert peak(zero_subgroup=8) == pytest.approx(plain + 2 * P / 8 / GB)
    assert peak(checkpointing=False, forward_tokens=4096) > peak(forward_tokens=4096) + 20
    assert peak(lora_rank=16) < peak(adam_offload=True) + 1
    assert peak(train_tokens=8 * 4096) > plain
    assert peak(context_parallel=4) < plain


def test_logits_are_what_a_long_micro_batch_takes() -> None:
    more = peak(forward_tokens=32768) - peak(forward_tokens=16384)
    logits = 6 * 16384 * 152064  # bf16 and its float32 copy
    layer = 16384 * (20 * 3584 + 4 * 512 + 8 * 18944) / 2
    assert more == pytest.approx((logits + layer) / GB)
    assert peak("critic") < peak("policy")  # a value head has no logits


def held(tensor_parallel: int = 1, memory: float = H200, **changes: Any) -> float:
    found = engine_limits(recipe(**changes), memory, tensor_parallel).held
    assert found is not None
    return found


def test_the_cache_is_what_utilization_leaves() -> None:
    free = 0.9 * H200 - 2 * P - 3 * GB
    # 28 layers x 4 heads x 128 x 2 bytes, keys and values
    assert held(gpu_memory_utilization=0.9) == pytest.approx(free / (57344 * 4096))
    assert held(2, gpu_memory_utilization=0.9) == pytest.approx((free + P) / (57344 / 2 * 4096))
    assert held(memory=16 * GB) == 0
    assert held(16) < held(8) * 1.02  # eight GPUs and four heads: every GPU stores one head


def test_what_sleeps_or_is_offloaded_lies_in_the_nodes_memory() -> None:
    assert footprint("engines").on_node == footprint("policy").on_node == footprint("reference").on_node == 0
    # Per layer 32 + 32 + 512 + 256 MiB for 31.5 + 24.5 + 259 + 129.5; embedding and LM head 2 GiB each for 1.02.
    assert footprint("engines", engines_sleep=True).on_node == 28 * 832 * 2**20 + 4 * GB
    assert footprint("engines", engines_sleep=True, tensor_parallel=4).on_node == 28 * 208 * 2**20 + GB
    assert footprint("policy", adam_offload=True).on_node == 2 * P  # 16 P over eight ranks: 122 GB on a node
    assert footprint("policy", deepspeed_sleeps=True).on_node == 14 * P / 8
    assert footprint("policy", deepspeed_sleeps=True, gradient_bytes=4).on_node == 2 * P
    assert footprint("reference", offloaded=frozenset({"reference"})).on_node == 2 * P / 8


def test_roles_on_one_gpu_work_in_turn_while_the_others_rest() -> None:
    assert together([Footprint(40, 4), Footprint(100, 2)]) == 104
    assert together([Footprint(40, 36), Footprint(100, 100)]) == 140
    assert footprint("policy", deepspeed_sleeps=True).resting / GB == pytest.approx((2 * P / 8) / GB + 2)
    assert footprint("policy").resting / GB > footprint("policy", deepspeed_sleeps=True).resting / GB + 10
    assert footprint("engines", engines_sleep=True).resting / GB == 5
    assert footprint("engines").resting / GB == peak("engines") == pytest.approx(0.95 * 140 + 1)
    assert footprint("reference", offloaded=frozenset({"reference"})).resting / GB == 2
    assert footprints(recipe(model=None), {"policy": 8, "engines": 8}, H200) == {}  # no estimate without sizes


def limits(sequences: float | None, **changes: Any) -> tuple[int, int]:
    """The limits of an engine whose cache holds ``sequences`` of 4,096 tokens."""
    beside = 2 * P + 3 * GB
    memory = None if sequences is None else beside + sequences * 57344 * 4096
    found = engine_limits(recipe(gpu_memory_utilization=1.0, **changes), memory, 1)
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
