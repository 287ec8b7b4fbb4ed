"""What `meds data prepare gym:TASK` is asked for. Imports nothing heavy: the defaults are in `meds --help`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from meds_openrlhf.config.errors import ConfigError

PREFIX = "gym:"
QWEN_MATH_SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True, kw_only=True)
class GymRequest:
    """What to make: ``size`` training and ``held_out`` other problems of each task, with the task's ``settings``.

    An answer is right if its score is at least ``threshold``. ``instruction`` is the prompt's system turn.
    """

    tasks: Sequence[str]
    size: int = 5000
    held_out: int = 0
    seed: int = 0
    threshold: float = 1.0
    instruction: str = QWEN_MATH_SYSTEM
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from meds_openrlhf.gym.problem import MOST

        if self.size < 1:
            raise ConfigError("--size", self.size, "must be at least 1.")
        if not 0 <= self.seed <= MOST:
            raise ConfigError("--seed", self.seed, f"must be at least 0 and at most {MOST:,}.")
        if self.held_out < 0:
            raise ConfigError("--held-out", self.held_out, "must be at least 0.")
        if not 0 < self.threshold <= 1:
            raise ConfigError("--threshold", self.threshold, "must be above 0 and at most 1, a scorer's maximum.")
        if not self.instruction.strip() or "<|im_" in self.instruction:
            fault = "contains a chat marker (`<|im_`)" if self.instruction.strip() else "is empty"
            hint = f"{fault}. Write plain text that tells the model how to answer."
            raise ConfigError("--instruction", self.instruction, hint)
