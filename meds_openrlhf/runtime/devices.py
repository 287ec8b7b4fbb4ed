"""This machine's GPUs: whether there are any, what their driver reports, and the settings of the CPU runtime."""

from __future__ import annotations

import ctypes
import os
import subprocess
from importlib.metadata import version

from meds_openrlhf.config.errors import ConfigError

# The oldest driver of each CUDA version (NVIDIA, "CUDA Toolkit and driver versions").
OLDEST_DRIVER = {12: 525, 13: 580}

# Environment variables that the CPU builds of vLLM, DeepSpeed and the tokenizers need in every worker.
CPU_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    # Run an engine's only worker in the engine's process; otherwise vLLM starts another process to bind OpenMP threads.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "DS_ACCELERATOR": "cpu",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",  # as on GPUs: tensors from other processes are read-only
}
# What a user may set, for policies that are not tiny: the threads of each process, and GiB for keys and values.
OF_THE_USER = ("OMP_NUM_THREADS", "VLLM_CPU_KVCACHE_SPACE")
# The GPUs and CPUs that Ray sees: placement works as on real hardware, although the devices do not exist.
MADE_UP_GPUS = 8
MADE_UP_CPUS = 32


def cpu_environment() -> dict[str, str]:
    """Return `CPU_ENVIRONMENT`, but with the values of `OF_THE_USER` that this process has."""
    return CPU_ENVIRONMENT | {name: os.environ[name] for name in OF_THE_USER if name in os.environ}


def has_cuda() -> bool:
    """Return whether this process sees a CUDA device; without an NVIDIA driver this does not import torch."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    import torch

    return bool(torch.cuda.is_available())


def uses_cpu(allowed: bool) -> bool:
    """Return whether a run that is ``allowed`` to uses the CPU runtime here."""
    return allowed and not has_cuda()


def runs_on_cpu(allowed: bool, setting: str, refusal: str) -> bool:
    """Return whether to use the CPU runtime; a machine without a GPU may still belong to a cluster with GPUs.

    Raises ConfigError about ``setting`` if the CPU runtime is needed but not ``allowed``.
    """
    if has_cuda():
        return False
    if not allowed and not os.environ.get("RAY_ADDRESS"):
        old = old_driver()
        raise ConfigError(setting, False, f"torch cannot use this machine's GPUs: {old}" if old else refusal)
    return allowed


def ask_driver(fields: str, seconds: float) -> list[list[str]]:
    """Return ``fields``, as named by `nvidia-smi --query-gpu`, of each GPU of this machine; memory is in MiB.

    Raises OSError or subprocess.SubprocessError if the driver does not answer within ``seconds``.
    """
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True).stdout
    return [line.split(", ") for line in answer.splitlines() if line.strip()]


def smallest_card() -> float | None:
    """Return the memory of this machine's smallest GPU in GB, as its driver reports it; None without an answer."""
    try:
        return min(float(memory) for (memory,) in ask_driver("memory.total", seconds=30)) / 1024  # from MiB
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def old_driver() -> str | None:
    """Return an error text if the driver of this machine's GPUs is too old for torch, otherwise None."""
    try:
        (driver,) = ask_driver("driver_version", seconds=60)[0]
        release = int(driver.partition(".")[0])
    except (OSError, subprocess.SubprocessError, LookupError, ValueError):
        return None
    import torch

    cuda = torch.version.cuda
    needed = OLDEST_DRIVER.get(int(cuda.partition(".")[0]), 0) if cuda else 0
    if release >= needed:
        return None
    return f"driver {driver} is too old for CUDA {cuda} of torch {version('torch')}. Update it to {needed} or newer."
