"""Running OpenRLHF where there is no CUDA: the only module that knows how. Where CUDA is present it does nothing.

`install` registers functions that each adapt one module at the moment it is imported; it costs nothing until then, so
every Ray worker can run it as its set-up hook. The classes at the end run vLLM's CPU build under OpenRLHF.
"""

from __future__ import annotations

import ctypes
import os
import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any

import wrapt

from meds_openrlhf.config.errors import ConfigError

# What the CPU builds of vLLM, DeepSpeed and the tokenizers want to find in every worker.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    # An engine's one worker lives in the engine's process; else vLLM starts another, to bind OpenMP threads to cores.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "DS_ACCELERATOR": "cpu",
    "TOKENIZERS_PARALLELISM": "false",
}
# OpenRLHF's flags that its defaults set for CUDA; a run's own file wins over these.
FLAGS = {
    "vllm.enforce_eager": True,
    "vllm.sync_backend": "gloo",
    "ds.attn_implementation": "sdpa",
    "vllm.enable_sleep": False,  # its memory pools are CUDA's
}
# The machine's GPUs, as far as Ray is concerned: placement is the real thing, only the devices are not there.
MADE_UP_GPUS = 8
MADE_UP_CPUS = 32


def has_cuda() -> bool:
    """Whether this process sees a CUDA device. Without NVIDIA's driver the answer takes no time."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    import torch

    return bool(torch.cuda.is_available())


def runs_on_cpu(allowed: bool, setting: str, refusal: str) -> bool:
    """Whether this runtime stands in. A machine without a GPU may still belong to a cluster that has some.

    Raises ConfigError, about the ``setting``, where it would have to and is not ``allowed``.
    """
    if has_cuda():
        return False
    if not allowed and not os.environ.get("RAY_ADDRESS"):
        raise ConfigError(setting, False, refusal)
    return allowed


def install() -> None:
    """Make this process ready to run OpenRLHF without CUDA; the work is done when its modules are imported."""
    os.environ.update(ENVIRONMENT)
    if getattr(install, "done", False):
        return
    install.done = True  # type: ignore[attr-defined]
    for module, adapt in _ADAPTERS.items():
        wrapt.register_post_import_hook(adapt, module)


def _adapt_torch_cuda(_openrlhf: types.ModuleType) -> None:
    """OpenRLHF asks torch.cuda for its device and synchronises with it; the device is the CPU."""
    if has_cuda():
        return
    import torch
    import torch.distributed.device_mesh as device_mesh

    torch.cuda.current_device = lambda: torch.device("cpu")
    for name in ("empty_cache", "synchronize", "set_device", "current_stream"):
        setattr(torch.cuda, name, lambda *args, **kwargs: None)
    make_mesh = device_mesh.init_device_mesh
    device_mesh.init_device_mesh = lambda _device, *args, **kwargs: make_mesh("cpu", *args, **kwargs)
    _provide_flash_attention_names()


def _provide_flash_attention_names() -> None:
    """OpenRLHF imports padding helpers from flash_attn, which needs CUDA to build; transformers holds the same ones."""
    from einops import rearrange
    from transformers import modeling_flash_attention_utils as helpers

    padding = _module("flash_attn.bert_padding")
    padding.index_first_axis = lambda tensor, indices: tensor[indices]  # transformers' own flattens two axes first
    padding.pad_input = helpers._pad_input
    padding.unpad_input = helpers._unpad_input
    padding.rearrange = rearrange
    distributed = _module("flash_attn.utils.distributed")
    distributed.all_gather = _no_ring_attention
    for name in ("flash_attn", "flash_attn.utils"):
        _module(name)


def _module(name: str) -> Any:
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, loader=None, is_package=True)
    module.__path__ = []  # type: ignore[attr-defined]
    sys.modules[name] = module
    return module


def _no_ring_attention(*_args: object) -> None:
    raise NotImplementedError("ds.ring_attn_size: ring attention needs CUDA; leave it at 1")


def _adapt_replay_buffer(module: Any) -> None:
    """The replay buffer builds its device from the text "cuda:<index>"."""
    if has_cuda():
        return
    import torch

    class CpuTorch(types.ModuleType):
        """torch, but its `device` is always the CPU."""

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        @staticmethod
        def device(_name: str) -> Any:
            return torch.device("cpu")

    module.torch = CpuTorch("torch")


def _adapt_optimizer(module: Any) -> None:
    """torch's Adam in place of DeepSpeed's own, which the first training on a machine would compile for a minute."""
    if has_cuda():
        return
    config_of = module.get_train_ds_config

    def with_torch_adam(*args: Any, optim_config: dict[str, Any] | None = None, **kwargs: Any) -> dict[str, Any]:
        if optim_config is not None and "adam" in optim_config["type"].lower():
            optim_config = {**optim_config, "params": {**optim_config["params"], "torch_adam": True}}
        config: dict[str, Any] = config_of(*args, optim_config=optim_config, **kwargs)
        return config

    module.get_train_ds_config = with_torch_adam


def _adapt_communication(module: Any) -> None:
    """Without DeepSpeed's shared-memory collectives, which would be compiled as well; Gloo does without."""
    if not has_cuda():
        module.build_shm_op = lambda: None


def _adapt_parameter_gathering(module: Any) -> None:
    """DeepSpeed gathers several ZeRO-3 parameters at once and waits for the last one only.

    That is right on a CUDA stream, where they end in order. Gloo's end in any order, so a large parameter could be read
    while parts of it were still on their way, as NaN or as old weights: gather one after the other.
    """
    if has_cuda():
        return

    def gather(self: Any, param_list: list[Any], hierarchy: int = 0, quantize: bool = False) -> None:
        self._allgather_params_sequential(param_list, hierarchy)

    module.Init._allgather_params_coalesced = gather


def _adapt_weight_sync(module: Any) -> None:
    """Weights travel to the engines over a TCP process group instead of NCCL."""
    if not has_cuda():
        module.stateless_init_process_group = _tcp_process_group


def _adapt_engines(module: Any) -> None:
    """OpenRLHF's engine actor, with our worker extension for vLLM's CPU build."""
    if has_cuda():
        return
    import ray

    from meds_openrlhf.training.openrlhf_source import plain_class

    engine = plain_class(module.RolloutRayActor)

    class CpuRolloutActor(engine):  # type: ignore[valid-type, misc]
        """OpenRLHF's engine actor on vLLM's CPU build."""

        async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]
            kwargs["worker_extension_cls"] = f"{__name__}.CpuWeightReceiver"
            await super().__init__(*args, **kwargs)

    module.RolloutRayActor = ray.remote(CpuRolloutActor)


_ADAPTERS = {
    "openrlhf": _adapt_torch_cuda,
    "deepspeed.comm.torch": _adapt_communication,
    "deepspeed.runtime.zero.partition_parameters": _adapt_parameter_gathering,
    "openrlhf.trainer.ppo_utils.replay_buffer": _adapt_replay_buffer,
    "openrlhf.utils.deepspeed.deepspeed": _adapt_optimizer,
    "openrlhf.utils.distributed_util": _adapt_weight_sync,
    "openrlhf.trainer.ray.vllm_engine": _adapt_engines,
}


class _TcpProcessGroup:
    """vLLM's store-based process group with the one call that OpenRLHF makes of NCCL's: a broadcast from rank 0."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def broadcast(self, tensor: Any, src: int, stream: object = None) -> None:
        """Send ``tensor`` from rank ``src``, or receive into it."""
        received = self._group.broadcast_obj(tensor.detach().clone() if self._group.rank == src else None, src)
        if self._group.rank != src:
            tensor.copy_(received)


def _tcp_process_group(address: str, port: int, rank: int, world_size: int, _device: object) -> _TcpProcessGroup:
    from vllm.distributed.utils import StatelessProcessGroup

    return _TcpProcessGroup(StatelessProcessGroup.create(host=address, port=port, rank=rank, world_size=world_size))


class CpuWeightReceiver:
    """vLLM worker extension: OpenRLHF's weight updates on the CPU build.

    That build repacks the linear layers when it loads a model, so single weights cannot be loaded into it later. All
    weights of one update are collected, and loaded together when OpenRLHF marks the last one.
    """

    def init_process_group(
        self, address: str, port: int, rank_offset: int, world_size: int, group_name: str, backend: str, use_ray: bool
    ) -> None:
        """Join the group in which the policy's rank 0 sends the weights."""
        import torch

        rank = torch.distributed.get_rank() + rank_offset
        self._update_group = _tcp_process_group(address, port, rank, world_size, None)
        self._update: list[tuple[str, Any]] = []

    def update_weight(self, name: str, dtype: Any, shape: Any, empty_cache: bool = False) -> None:
        """Receive one weight; ``empty_cache`` marks the last of an update."""
        import torch

        weight = torch.empty(shape, dtype=dtype)
        self._update_group.broadcast(weight, src=0)
        self._update.append((name, weight))
        if empty_cache:
            update, self._update = self._update, []
            self.model_runner.reload_weights(weights_iterator=iter(update))  # type: ignore[attr-defined]
