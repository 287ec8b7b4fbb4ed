"""Starting OpenRLHF's models."""

import time
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import ray
from vllm.config.kernel import MoEBackend
from vllm.engine.arg_utils import AsyncEngineArgs

from meds_openrlhf.placement.engine_limits import EngineLimits
from meds_openrlhf.training.openrlhf.access import bound
from meds_openrlhf.training.start.actors import _wait_for, policy_options, vllm_options


@pytest.mark.usefixtures("ray_cluster")
def test_an_engine_that_cannot_start_ends_the_wait_for_the_policy(tmp_path) -> None:  # type: ignore[no-untyped-def]
    class Engine:  # here, so that its process does not import this module, and OpenRLHF
        def __init__(self, reward: str) -> None:
            open(reward).close()

        def status(self) -> None: ...

    (tmp_path / "there").touch()
    engine = ray.remote(num_cpus=0)(Engine)
    _wait_for([ray.put(1)], [engine.remote(str(tmp_path / "there"))])
    for_ever = ray.remote(lambda: time.sleep(600)).remote()
    with pytest.raises(ray.exceptions.RayActorError, match="nowhere"):
        _wait_for([for_ever], [engine.remote(str(tmp_path / "nowhere"))])


@pytest.mark.usefixtures("ray_cluster")
def test_the_ranks_share_the_cpus_of_their_node_where_the_optimizer_is_there() -> None:
    with_offload, without = (SimpleNamespace(ds=SimpleNamespace(adam_offload=offload)) for offload in (True, False))
    threads = {"OMP_NUM_THREADS": "2"}  # the tests' node has 16 CPUs, and 8 GPUs made up
    assert policy_options(with_offload) == {"runtime_env": {"env_vars": threads}}
    assert policy_options(without) == {}


def test_engines_of_moe_keep_the_layout_of_a_weight_sync() -> None:
    limits = EngineLimits(8, 2048)
    plain = {"max_num_seqs": 8, "max_num_batched_tokens": 2048, "logprobs_mode": "processed_logprobs"}
    assert vllm_options(limits, True, on_cpu=False, param_dtype="bf16") == {**plain, "moe_backend": "triton"}
    assert vllm_options(limits, True, on_cpu=True, param_dtype="bf16") == plain  # the CPU build has kernels of its own
    assert vllm_options(limits, False, on_cpu=False, param_dtype="bf16") == plain
    assert {*plain, "moe_backend"} <= {field.name for field in fields(AsyncEngineArgs)}
    assert "triton" in get_args(MoEBackend)


def test_engines_compute_in_the_policys_type() -> None:
    options = vllm_options(EngineLimits(8, 2048), has_experts=False, on_cpu=True, param_dtype="fp32")
    given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    actor = SimpleNamespace(remote=lambda *args, **kwargs: given.append((args, kwargs)))
    bound(actor, **options).remote("model", dtype="bfloat16", seed=3)
    assert given == [(("model",), {"seed": 3, **options, "dtype": "float32"})]
