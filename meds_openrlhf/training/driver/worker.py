"""Setup hooks of the run's Ray worker processes; Ray gets these functions by name."""

from __future__ import annotations

from meds_openrlhf.training import cpu
from meds_openrlhf.training.driver import stacks

SET_UP = f"{__name__}.set_up"
SET_UP_WITHOUT_CUDA = f"{__name__}.set_up_without_cuda"


def set_up() -> None:
    """Enable stack dumps on request."""
    stacks.arm()


def set_up_without_cuda() -> None:
    """Enable stack dumps on request and prepare the process to run OpenRLHF without CUDA."""
    stacks.arm()
    cpu.install()
