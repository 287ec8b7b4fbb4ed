"""Estimates against figures worked out by hand, and how they move with the settings."""

from typing import Any

import pytest

from meds_openrlhf.placement.inventory import GB
from meds_openrlhf.placement.memory_estimate import Footprint, footprints, together
from tests.placement.clusters import arguments, models

P = 7_615_616_512
H200 = 140 * GB


def footprint(role: str, ranks: int = 8, **changes: Any) -> Footprint:
    beside = ("reference", "critic")
    counts = dict.fromkeys(("policy", "engines", *beside), ranks)
    args = arguments(*beside, actor__num_gpus_per_node=ranks, **changes)
    return footprints(args, models(*beside), counts, H200)[role]


def peak(role: str = "policy", **changes: Any) -> float:
    return footprint(role, **changes).peak / GB


def test_the_states_of_zero_are_deepspeeds_own_figures() -> None:
    work = peak(ds__zero_stage=2, ds__adam_offload=True) - 2 * P / GB  # what does not depend on the states
    buckets = 2e9 / GB
    # 2 P + 18 P / W: deepspeed.runtime.zero.stage_1_and_2.estimate_zero2_model_states_mem_needs
    assert peak(ds__zero_stage=2) == pytest.approx(work + (2 * P + 18 * P / 8) / GB)
    assert peak(ds__zero_stage=1) == pytest.approx(work + (4 * P + 16 * P / 8) / GB)
    assert peak(ds__zero_stage=0) == pytest.approx(work + (20 * P) / GB)
    # 18 P / W with the step's copy (here whole: a share of less than 1e9), and up to 1e9 gathered parameters
    assert peak(ds__zero_stage=3) == pytest.approx(work + (20 * P / 8 + 2e9) / GB)
    assert peak(ds__zero_stage=3, ds__adam_offload=True) == pytest.approx(work + (2 * P / 8 + 2e9) / GB)
    assert work > buckets


def test_what_makes_a_rank_larger_or_smaller() -> None:
    plain = peak()
    assert peak(ranks=32) < plain < peak(ranks=4)
    assert peak(ds__grad_accum_dtype="fp32") == pytest.approx(plain + 2 * P / 8 / GB)
    assert peak(ds__zpg=8) == pytest.approx(plain + 2 * P / 8 / GB)
    assert (
        peak(actor__gradient_checkpointing_enable=False, rollout__micro_batch_size=1)
        > peak(rollout__micro_batch_size=1) + 20
    )
    assert peak(ds__lora__rank=16) < peak(ds__adam_offload=True) + 1
    assert peak(train__micro_batch_size=8) > plain
    assert peak(ds__ring_attn_size=4) < plain


def test_logits_are_what_a_long_micro_batch_takes() -> None:
    more = peak(rollout__micro_batch_size=8) - peak(rollout__micro_batch_size=4)
    logits = 6 * 16384 * 152064  # bf16 and its float32 copy
    layer = 16384 * (20 * 3584 + 4 * 512 + 8 * 18944) / 2
    assert more == pytest.approx((logits + layer) / GB)
    assert peak("critic") < peak("policy")  # a value head has no logits


def test_what_sleeps_or_is_offloaded_lies_in_the_nodes_memory() -> None:
    assert footprint("engines").on_node == footprint("policy").on_node == footprint("reference").on_node == 0
    # Per layer 32 + 32 + 512 + 256 MiB for 31.5 + 24.5 + 259 + 129.5; embedding and LM head 2 GiB each for 1.02.
    assert footprint("engines", train__colocate_all=True, vllm__enable_sleep=True).on_node == 28 * 832 * 2**20 + 4 * GB
    assert (
        footprint("engines", train__colocate_all=True, vllm__enable_sleep=True, vllm__tensor_parallel_size=4).on_node
        == 28 * 208 * 2**20 + GB
    )
    assert footprint("policy", ds__adam_offload=True).on_node == 2 * P  # 16 P over eight ranks: 122 GB on a node
    assert footprint("policy", ds__enable_sleep=True).on_node == 14 * P / 8
    assert footprint("policy", ds__enable_sleep=True, ds__grad_accum_dtype="fp32").on_node == 2 * P
    assert footprint("reference", ref__offload=True).on_node == 2 * P / 8


def test_roles_on_one_gpu_work_in_turn_while_the_others_rest() -> None:
    assert together([Footprint(40, 4), Footprint(100, 2)]) == 104
    assert together([Footprint(40, 36), Footprint(100, 100)]) == 140
    assert footprint("policy", ds__enable_sleep=True).resting / GB == pytest.approx((2 * P / 8) / GB + 2)
    assert footprint("policy").resting / GB > footprint("policy", ds__enable_sleep=True).resting / GB + 10
    assert footprint("engines", train__colocate_all=True, vllm__enable_sleep=True).resting / GB == 5
    assert footprint("engines").resting / GB == peak("engines") == pytest.approx(0.95 * 140 + 1)
    assert footprint("reference", ref__offload=True).resting / GB == 2
    assert (
        footprints(arguments(), models(name=None), {"policy": 8, "engines": 8}, H200) == {}
    )  # no estimate without sizes
