"""The CPU runtime changes what it must without CUDA, and nothing with it."""

import importlib
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from meds_openrlhf.training.openrlhf import cpu
from tests.processes import free_ports
from tests.training.ranks import run_ranks

pytestmark = pytest.mark.skipif(cpu.has_cuda(), reason="about machines without CUDA")


def test_what_no_run_uses_is_not_imported_into_every_process() -> None:
    """DeepSpeed's autotuner would import MLflow, and transformers scikit-learn."""
    assert importlib.import_module("deepspeed.autotuning").Autotuner is None
    assert not importlib.import_module("transformers.utils").is_sklearn_available()


def test_with_cuda_nothing_is_adapted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "has_cuda", lambda: True)
    for name, adapt in cpu._ADAPTERS.items():
        module = types.ModuleType(name)
        original = object()
        names = ("torch", "RolloutRayActor", "stateless_init_process_group", "build_shm_op", "get_train_ds_config")
        names += ("convert_to_torch_dtype",)
        vars(module).update(dict.fromkeys(names, original))
        cpu._without_cuda(adapt, module)
        assert {getattr(module, name) for name in names} == {original}


def test_adam_is_torchs_and_nothing_of_deepspeeds_is_compiled() -> None:
    from openrlhf.utils.deepspeed.deepspeed import get_train_ds_config

    adam = {"type": "Adam", "params": {"lr": 1e-3, "betas": (0.9, 0.95)}}
    config = get_train_ds_config(offload=False, adam_offload=False, optim_config=adam)
    assert config["optimizer"] == {"type": "Adam", "params": {**adam["params"], "torch_adam": True}}
    assert "torch_adam" not in adam["params"]
    assert "optimizer" not in get_train_ds_config(offload=False, adam_offload=False)
    assert importlib.import_module("deepspeed.comm.torch").build_shm_op() is None


def test_a_policy_in_float32_is_one_for_the_model_and_for_deepspeed() -> None:
    from openrlhf.utils.deepspeed.deepspeed import get_train_ds_config
    from openrlhf.utils.utils import convert_to_torch_dtype

    assert convert_to_torch_dtype("fp32") is torch.float32
    assert convert_to_torch_dtype("bf16") is torch.bfloat16
    config = get_train_ds_config(offload=False, adam_offload=False, param_dtype="fp32")
    assert not config["bf16"]["enabled"]
    assert not config["fp16"]["enabled"]
    with pytest.raises(ValueError, match="fp64"):
        convert_to_torch_dtype("fp64")


def test_a_weight_that_the_engines_have_is_not_kept() -> None:
    """The policy would grow by its own size with each weight sync."""
    (port,) = free_ports(1)
    with ThreadPoolExecutor(1) as engine:
        joined = engine.submit(cpu._tcp_group, "127.0.0.1", port, 1, 2)
        sender = cpu.TcpSender("127.0.0.1", port, 0, 2, None)
        receiver = joined.result()
        keys = receiver.store.num_keys()
        for number in range(5):
            received = engine.submit(receiver.broadcast_obj, None, 0)
            sender.broadcast(torch.full((3,), number), 0, None)
            assert received.result().tolist() == [number] * 3
        assert receiver.store.num_keys() == keys + 1


def main(rank: int, ranks: int, port: str) -> None:
    """One of two ranks that change a ZeRO-3 parameter and read it back: prints how often it was not whole."""
    import deepspeed

    deepspeed.init_distributed("gloo")
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    with deepspeed.zero.Init(config_dict_or_path=config):
        layer = torch.nn.Linear(96, 96)
    torch.manual_seed(0)
    broken = 0
    for _ in range(150):
        expected = torch.randn(96, 96)
        with deepspeed.zero.GatheredParameters([layer.weight, layer.bias], modifier_rank=0):
            if rank == 0:
                layer.weight.data.copy_(expected)
        with deepspeed.zero.GatheredParameters([layer.weight, layer.bias]):
            broken += not torch.equal(layer.weight.data, expected)
    print(f"broken {broken}")


@pytest.mark.e2e
def test_parameters_of_two_ranks_are_whole_when_they_are_read() -> None:
    for printed in run_ranks(__name__, 2):
        assert "broken 0" in printed.splitlines()
