"""What the user asks for, and a label's settings: written before its first sample, and shared by all its samples."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.schema import Pattern
from meds_openrlhf.config.section import fit
from meds_openrlhf.evaluation.problems import Problem
from meds_openrlhf.files import read_file, write_atomically
from meds_openrlhf.json_text import parse_json
from meds_openrlhf.paths import inside

MAX_TOKENS = 7168  # of a response, if no run says how long its own were: the paper's for Qwen3
SETTINGS = "settings.json"
# The flag for each setting of a label, and the settings that must agree for labels to be comparable.
_COMPARED = {
    **{"temperature": "--temperature", "top_p": "--top-p", "max_tokens": "--max-tokens"},
    "answer_pattern": "--answer-pattern",
}
_KINDS: dict[str, Any] = {"model": str, "fingerprint": str, "benchmarks": dict, "seed": int, "max_tokens": int}
_FLAGS = {"fingerprint": "MODEL", **_COMPARED, "seed": "--seed"}


@dataclass(frozen=True)
class Request:
    """The user's request. ``engines`` None: as many as there is room for. Raises ConfigError for impossible numbers.

    ``max_tokens`` and ``answer_pattern`` None: as the runs trained.
    """

    models: tuple[str, ...]
    benchmarks: tuple[str, ...]
    out: Path
    data: Path
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
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        counts = {"--n": self.n, "--max-tokens": self.max_tokens, "--engines": self.engines}
        for flag, number in {**counts, "--tensor-parallel": self.tensor_parallel}.items():
            if number is not None and number < 1:
                raise ConfigError(flag, number, "must be at least 1.")
        if not 0 <= self.temperature <= 2:
            raise ConfigError("--temperature", self.temperature, "must be between 0 and 2.")
        if not 0 < self.top_p <= 1:
            raise ConfigError("--top-p", self.top_p, "must be above 0 and at most 1.")
        if not 0 <= self.wait_seconds < math.inf:
            raise ConfigError("--wait", self.wait_seconds, "must be a finite number of seconds, 0 or more.")
        fit(self.answer_pattern, Pattern | None, "--answer-pattern")


@dataclass(frozen=True)
class Settings:
    """``fingerprint`` identifies the model's weights independent of its path; ``benchmarks`` are problem hashes."""

    model: str
    fingerprint: str
    temperature: float
    top_p: float
    seed: int
    max_tokens: int
    benchmarks: dict[str, str]
    answer_pattern: str | None = None

    def difference(self, other: Settings) -> str | None:
        """Why ``other``'s samples cannot be compared with these, e.g. ``temperature 0.6``; None if they can."""
        for name in _COMPARED:
            if getattr(self, name) != getattr(other, name):
                value = getattr(other, name)
                return f"{name} {value:g}" if isinstance(value, int | float) else f"{name} {value!r}"
        strange = [name for name, digest in self.benchmarks.items() if other.benchmarks.get(name, digest) != digest]
        return f"other problems of {strange[0]}" if strange else None


def problems_hash(problems: Sequence[Problem]) -> str:
    """Hash the problems' ids, prompts and answers, independent of their file and its keys."""
    content = json.dumps([[problem.id, problem.prompt, problem.answer] for problem in problems])
    return hashlib.sha256(content.encode()).hexdigest()


def read_settings(folder: Path) -> Settings | None:
    """Read a label's settings; None if the folder is not a label's. Raises ConfigError if they cannot be read."""
    path = inside(folder, SETTINGS)
    if not path.is_file():
        return None
    try:
        settings = Settings(**parse_json(read_file(path)))
        for name, kind in _KINDS.items():
            if not isinstance(getattr(settings, name), kind):
                raise TypeError(f"{name} has another type")
        return settings
    except (ValueError, TypeError, OSError) as error:
        hint = f"cannot be read as the settings of a label ({error}). Name another folder."
        raise ConfigError("--out", str(path), hint) from error


def check_settings(folder: Path, wanted: Settings) -> Settings:
    """The settings to write into the label's folder: ``wanted``, with the benchmarks that are there already.

    Raises ConfigError if the samples in the folder were drawn with other settings.
    """
    present = read_settings(folder)
    if present is None:
        return wanted

    def refusal(flag: str, value: object, found: object) -> ConfigError:
        hint = f"does not fit the samples in {folder}, drawn with {found}. Name another label or --out."
        return ConfigError(flag, value, hint)

    for name, flag in _FLAGS.items():
        if getattr(present, name) != getattr(wanted, name):
            shown = "model" if name == "fingerprint" else name
            raise refusal(flag, getattr(wanted, shown), getattr(present, shown))
    for benchmark, digest in wanted.benchmarks.items():
        if present.benchmarks.get(benchmark, digest) != digest:
            raise refusal("--benchmarks", benchmark, "other problems of that name")
    return replace(present, benchmarks={**present.benchmarks, **wanted.benchmarks})


def write_settings(folder: Path, settings: Settings) -> None:
    """Write the settings durably; call before the label's first sample."""
    write_atomically(folder / SETTINGS, json.dumps(asdict(settings), indent=1) + "\n")
