"""Adapts OpenRLHF to machines without CUDA; has no effect if CUDA is present. All such code is in this module.

`install` registers functions that each adapt one module when it is imported. It costs nothing until then, so every Ray
worker can run it as its setup hook. The classes at the end run vLLM's CPU build under OpenRLHF.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

import wrapt

from meds_openrlhf.runtime.devices import CPU_ENVIRONMENT, has_cuda

# OpenRLHF flags whose defaults are meant for CUDA; the run's configuration file overrides these.
FLAGS = {
    "vllm.enforce_eager": True,
    "vllm.sync_backend": "gloo",
    "ds.attn_implementation": "sdpa",
    "vllm.enable_sleep": False,  # its memory pools need CUDA
    "ds.enable_sleep": False,  # only the optimizer that is compiled for CUDA can be offloaded
}


def install() -> None:
    """Prepare this process to run OpenRLHF without CUDA; each module is adapted when it is imported."""
    os.environ.update(CPU_ENVIRONMENT)
    if getattr(install, "done", False):
        return
    install.done = True  # type: ignore[attr-defined]
    for module, adapt in _ADAPTERS.items():
        wrapt.register_post_import_hook(functools.partial(_without_cuda, adapt), module)


def _without_cuda(adapt: Callable[[Any], None], module: types.ModuleType) -> None:
    if not has_cuda():
        adapt(module)


def _adapt_torch_cuda(_openrlhf: types.ModuleType) -> None:
    """Patch torch.cuda, which OpenRLHF uses to find and synchronize its device, to use the CPU."""
    import torch
    import torch.distributed.device_mesh as device_mesh

    torch.cuda.current_device = lambda: torch.device("cpu")
    for name in ("empty_cache", "synchronize", "set_device", "current_stream"):
        setattr(torch.cuda, name, lambda *args, **kwargs: None)
    make_mesh = device_mesh.init_device_mesh
    device_mesh.init_device_mesh = lambda _device, *args, **kwargs: make_mesh("cpu", *args, **kwargs)
    _provide_flash_attention_names()


def _provide_flash_attention_names() -> None:
    """Provide the padding helpers of flash_attn, which needs CUDA to build, from transformers."""
    from einops import rearrange
    from transformers import modeling_flash_attention_utils as helpers

    padding = _module("flash_attn.bert_padding")
    padding.index_first_axis = lambda tensor, indices: tensor[indices]  # transformers' version flattens two axes first
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
    """Patch the replay buffer, which creates its device from the text "cuda:<index>"."""
    import torch

    class CpuTorch(types.ModuleType):
        """The torch module with a `device` that is always the CPU."""

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        @staticmethod
        def device(_name: str) -> Any:
            return torch.device("cpu")

    module.torch = CpuTorch("torch")


def _adapt_optimizer(module: Any) -> None:
    """Use torch's Adam instead of DeepSpeed's, which the first run on a machine would compile for a minute."""
    config_of = module.get_train_ds_config

    def with_torch_adam(*args: Any, optim_config: dict[str, Any] | None = None, **kwargs: Any) -> dict[str, Any]:
        if optim_config is not None and "adam" in optim_config["type"].lower():
            optim_config = {**optim_config, "params": {**optim_config["params"], "torch_adam": True}}
        config: dict[str, Any] = config_of(*args, optim_config=optim_config, **kwargs)
        return config

    module.get_train_ds_config = with_torch_adam


def _adapt_attention(module: Any) -> None:
    """Attend with torch where OpenRLHF takes flash attention, for packed samples.

    Transformers tells these apart by their position ids, since OpenRLHF switches its cache off.
    """

    def with_torch(load: Any) -> Any:
        @functools.wraps(load)  # under its own name, by which Ray passes it on with the critic's class
        def loaded(*args: Any, **kwargs: Any) -> Any:
            if "flash" in kwargs.get("attn_implementation", ""):
                kwargs["attn_implementation"] = FLAGS["ds.attn_implementation"]
            return load(*args, **kwargs)

        return loaded

    if hasattr(module, "Actor"):
        module.Actor.__init__ = with_torch(module.Actor.__init__)
    else:
        module.get_llm_for_sequence_regression = with_torch(module.get_llm_for_sequence_regression)


def _adapt_communication(module: Any) -> None:
    """Disable DeepSpeed's shared-memory collectives, which also need compiling; Gloo works without them."""
    module.build_shm_op = lambda: None


def _adapt_parameter_gathering(module: Any) -> None:
    """Gather ZeRO-3 parameters one after the other.

    DeepSpeed gathers several parameters at once and waits only for the last. This is correct on a CUDA stream, where
    operations finish in order. With Gloo they finish in any order, so a large parameter could be read as NaN or old
    weights before all of it has arrived.
    """

    def gather(self: Any, param_list: list[Any], hierarchy: int = 0, quantize: bool = False) -> None:
        self._allgather_params_sequential(param_list, hierarchy)

    module.Init._allgather_params_coalesced = gather


def _adapt_weight_sync(module: Any) -> None:
    """Send weights to the engines over a TCP process group instead of NCCL."""
    module.stateless_init_process_group = _tcp_process_group


def _adapt_engines(module: Any) -> None:
    """Give OpenRLHF's engine actor the worker extension for vLLM's CPU build."""
    import ray

    from meds_openrlhf.training.host.openrlhf import plain_class

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
    "openrlhf.models.actor": _adapt_attention,
    "openrlhf.models.model": _adapt_attention,
    "openrlhf.trainer.ppo_utils.replay_buffer": _adapt_replay_buffer,
    "openrlhf.utils.deepspeed.deepspeed": _adapt_optimizer,
    "openrlhf.utils.distributed_util": _adapt_weight_sync,
    "openrlhf.trainer.ray.vllm_engine": _adapt_engines,
}


class _TcpProcessGroup:
    """vLLM's store-based process group with what is called of NCCL's: a broadcast from rank 0, and its end."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def destroy(self) -> None:
        """Let go of the connection."""
        self._group = None

    def broadcast(self, tensor: Any, src: int, stream: object = None) -> None:
        """Send ``tensor`` from rank ``src``, or receive into it."""
        received = self._group.broadcast_obj(tensor.detach().clone() if self._group.rank == src else None, src)
        if self._group.rank != src:
            tensor.copy_(received)


def _tcp_process_group(address: str, port: int, rank: int, world_size: int, _device: object) -> _TcpProcessGroup:
    from vllm.distributed.utils import StatelessProcessGroup

    return _TcpProcessGroup(StatelessProcessGroup.create(host=address, port=port, rank=rank, world_size=world_size))


class CpuWeightReceiver:
    """A vLLM worker extension that receives OpenRLHF's weight updates on the CPU build.

    The CPU build repacks the linear layers when it loads a model, so it cannot load single weights later. The extension
    collects all weights of an update and loads them together when OpenRLHF marks the last one.
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
