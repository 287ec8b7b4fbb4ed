"""The request for an evaluation, as given on the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.schema import Pattern
from meds_openrlhf.config.section import fit

MAX_TOKENS = 7168  # of a response, if no run says how long its own were: the paper's for Qwen3


@dataclass(frozen=True)
class Request:
    """The user's request. ``engines`` None: as many as there is room for. Raises ConfigError for impossible numbers.

    ``max_tokens`` and ``answer_pattern`` None: as the runs trained.
    """

    models: tuple[str, ...]
    benchmarks: tuple[str, ...]
    out: Path
    data: Path
    step: int | None
    n: int
    temperature: float
    top_p: float
    seed: int
    max_tokens: int | None
    engines: int | None
    tensor_parallel: int
    wait_seconds: float
    on_cpu: bool
    answer_pattern: str | None = None

    def __post_init__(self) -> None:
        counts = {"--n": self.n, "--max-tokens": self.max_tokens, "--engines": self.engines}
        for flag, number in {**counts, "--tensor-parallel": self.tensor_parallel}.items():
            if number is not None and number < 1:
                raise ConfigError(flag, number, "must be at least 1.")
        if not 0 <= self.temperature <= 2:
            raise ConfigError("--temperature", self.temperature, "must be from 0 to 2.")
        if not 0 < self.top_p <= 1:
            raise ConfigError("--top-p", self.top_p, "must be above 0 and at most 1.")
        if not 0 <= self.wait_seconds < math.inf:
            raise ConfigError("--wait", self.wait_seconds, "must be a number of seconds of at least 0.")
        fit(self.answer_pattern, Pattern | None, "--answer-pattern")
