"""What the NVIDIA driver of this machine says of its GPUs, and whether torch can work with it."""

from __future__ import annotations

import subprocess
from importlib.metadata import version

# The oldest driver of each CUDA version (NVIDIA, "CUDA Toolkit and driver versions").
OLDEST_DRIVER = {12: 525, 13: 580}


def ask_driver(fields: str, seconds: float) -> list[list[str]]:
    """Return ``fields`` of each GPU of this machine, names of `nvidia-smi --query-gpu`, memory in MiB.

    Raises OSError or subprocess.SubprocessError if the driver does not answer within ``seconds``.
    """
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True).stdout
    return [line.split(", ") for line in answer.splitlines() if line.strip()]


def smallest_card() -> float | None:
    """Return the memory of this machine's smallest GPU in GB, as its driver reports it; None if none answers."""
    try:
        return min(float(memory) for (memory,) in ask_driver("memory.total", seconds=30)) / 1024  # it says MiB
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def old_driver() -> str | None:
    """Say that this machine's GPUs cannot be used because their driver is too old for torch; None if it is not."""
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
    return f"driver {driver} is too old for CUDA {cuda} of torch {version('torch')}: update it to {needed} or newer"
