"""What every Ray worker process of a run does first; Ray is given these functions by name."""

from __future__ import annotations

from meds_openrlhf.training import cpu
from meds_openrlhf.training.driver import stacks

SET_UP = f"{__name__}.set_up"
SET_UP_WITHOUT_CUDA = f"{__name__}.set_up_without_cuda"


def set_up() -> None:
    """Make the process able to say what it is doing."""
    stacks.arm()


def set_up_without_cuda() -> None:
    """The same, and make it ready to run OpenRLHF without CUDA."""
    stacks.arm()
    cpu.install()
