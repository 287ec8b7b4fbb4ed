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

from meds_openrlhf.runtime.devices import cpu_environment, has_cuda

# OpenRLHF flags whose defaults are meant for CUDA; the run's configuration file overrides these.
FLAGS = {
    "vllm.enforce_eager": True,
    "vllm.sync_backend": "gloo",
    "ds.attn_implementation": "sdpa",
    "ds.param_dtype": "fp32",  # without instructions for bfloat16, an update takes up to twenty times as long in it
    "vllm.enable_sleep": False,  # its memory pools need CUDA
    "ds.enable_sleep": False,  # only the optimizer that is compiled for CUDA can be offloaded
}


def install() -> None:
    """Prepare this process to run OpenRLHF without CUDA; each module is adapted when it is imported."""
    os.environ.update(cpu_environment())
    if getattr(install, "done", False):
        return
    install.done = True  # type: ignore[attr-defined]
    for module, adapt in _ADAPTERS.items():
        wrapt.register_post_import_hook(functools.partial(_without_cuda, adapt), module)


def _without_cuda(adapt: Callable[[Any], None], module: types.ModuleType) -> None:
    if not has_cuda():
        adapt(module)


def _leave_out_autotuner(_accelerator: types.ModuleType) -> None:
    """Save seconds of CPU time in every process: DeepSpeed's autotuner imports all of MLflow, and runs do not tune."""
    _module("deepspeed.autotuning.autotuner").Autotuner = None


def _leave_out_sklearn(module: Any) -> None:
    """Save seconds of CPU time in every process: transformers imports scikit-learn for assisted generation alone."""
    module.is_sklearn_available = lambda: False


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
    _module("flash_attn.utils.distributed").all_gather = None  # for ring attention, which needs CUDA
    for name in ("flash_attn", "flash_attn.utils"):
        _module(name)


def _module(name: str) -> Any:
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, loader=None, is_package=True)
    module.__path__ = []  # type: ignore[attr-defined]
    sys.modules[name] = module
    return module


def _adapt_replay_buffer(module: Any) -> None:
    """Patch the replay buffer, which creates its device from the text "cuda:<index>"."""
    torch = module.torch
    module.torch = types.SimpleNamespace(**{**vars(torch), "device": lambda _name: torch.device("cpu")})


def _adapt_types(module: Any) -> None:
    """Accept ``ds.param_dtype: fp32``.

    For DeepSpeed's configuration, a type that is neither "bf16" nor "fp16" means float32.
    """
    type_of = module.convert_to_torch_dtype
    module.convert_to_torch_dtype = lambda name: module.torch.float32 if name == "fp32" else type_of(name)


def _adapt_strategy(module: Any) -> None:
    """Use torch's Adam, because DeepSpeed's takes a minute to compile, and torch's attention instead of flash.

    OpenRLHF requires flash attention for packed samples. With torch's, transformers separates packed samples by their
    position ids, because OpenRLHF disables the cache.
    """
    config_of, set_up = module.get_train_ds_config, module.DeepspeedStrategy.setup_distributed

    def with_torch_adam(*args: Any, optim_config: dict[str, Any] | None = None, **kwargs: Any) -> dict[str, Any]:
        if optim_config is not None and "adam" in optim_config["type"].lower():
            optim_config = {**optim_config, "params": {**optim_config["params"], "torch_adam": True}}
        config: dict[str, Any] = config_of(*args, optim_config=optim_config, **kwargs)
        return config

    def with_torch_attention(strategy: Any, *args: Any, **kwargs: Any) -> None:
        if "flash" in strategy.args.ds.attn_implementation:
            strategy.args.ds.attn_implementation = FLAGS["ds.attn_implementation"]
        set_up(strategy, *args, **kwargs)

    module.get_train_ds_config = with_torch_adam
    module.DeepspeedStrategy.setup_distributed = with_torch_attention


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
    module.stateless_init_process_group = TcpSender


_ADAPTERS = {
    "transformers.utils": _leave_out_sklearn,
    "deepspeed.accelerator": _leave_out_autotuner,
    "openrlhf": _adapt_torch_cuda,
    "deepspeed.comm.torch": _adapt_communication,
    "deepspeed.runtime.zero.partition_parameters": _adapt_parameter_gathering,
    "openrlhf.trainer.ppo_utils.replay_buffer": _adapt_replay_buffer,
    "openrlhf.utils.deepspeed.deepspeed": _adapt_strategy,
    "openrlhf.utils.distributed_util": _adapt_weight_sync,
    "openrlhf.utils.utils": _adapt_types,
}


def _tcp_group(address: str, port: int, rank: int, world_size: int) -> Any:
    """Return vLLM's group. By default it keeps what it has sent for an hour, so a copy of the policy for each step.

    OpenRLHF sends a weight when all engines have the one before.
    """
    from vllm.distributed.utils import StatelessProcessGroup

    return StatelessProcessGroup.create(
        host=address, port=port, rank=rank, world_size=world_size, data_expiration_seconds=0
    )


class TcpSender:
    """The policy's side of a TCP process group, with the two methods of an NCCL group that OpenRLHF calls."""

    def __init__(self, address: str, port: int, rank: int, world_size: int, _device: object) -> None:
        self._group = _tcp_group(address, port, rank, world_size)

    def destroy(self) -> None:
        """Close the connection."""
        self._group = None

    def broadcast(self, tensor: Any, src: int, stream: object) -> None:
        """Send a copy of ``tensor``, because the tensor may be a view of a large buffer."""
        self._group.broadcast_obj(tensor.detach().clone(), src)


def engine_arguments() -> dict[str, str]:
    """Return changes to vLLM's arguments: the worker extension after `install` without CUDA, otherwise none."""
    is_adapted = hasattr(install, "done") and not has_cuda()  # the engine actor of a GPU run may not see its GPUs
    return {"worker_extension_cls": f"{__name__}.CpuWeightReceiver"} if is_adapted else {}


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
        self._update_group = _tcp_group(address, port, rank, world_size)
        self._update: list[tuple[str, Any]] = []

    def update_weight(self, name: str, dtype: Any, shape: Any, empty_cache: bool = False) -> None:
        """Receive one weight; ``empty_cache`` marks the last of an update."""
        self._update.append((name, self._update_group.broadcast_obj(None, src=0)))
        if empty_cache:
            update, self._update = self._update, []
            self.model_runner.reload_weights(weights_iterator=iter(update))  # type: ignore[attr-defined]
