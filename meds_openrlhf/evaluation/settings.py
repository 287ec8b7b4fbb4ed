"""What a label's samples were drawn with, written before the first of them. Others are never mixed in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.evaluation.problems import Problem
from meds_openrlhf.files import write_atomically

SETTINGS = "settings.json"
# What each has to be turned by, and what makes samples comparable between labels.
_FLAGS = {
    "fingerprint": "MODEL",
    "temperature": "--temperature",
    "top_p": "--top-p",
    "seed": "--seed",
    "max_tokens": "--max-tokens",
}
_COMPARED = ("temperature", "top_p", "max_tokens")


@dataclass(frozen=True)
class Settings:
    """``fingerprint`` tells the model's weights apart, whatever its path; ``benchmarks`` are hashes of the problems."""

    model: str
    fingerprint: str
    temperature: float
    top_p: float
    seed: int
    max_tokens: int
    benchmarks: dict[str, str]

    def difference(self, other: Settings) -> str | None:
        """In what ``other``'s samples cannot be compared with these, as ``temperature 0.6``; None where they can."""
        for name in _COMPARED:
            if getattr(self, name) != getattr(other, name):
                return f"{name} {getattr(other, name):g}"
        strange = [name for name, digest in self.benchmarks.items() if other.benchmarks.get(name, digest) != digest]
        return f"other problems of {strange[0]}" if strange else None


def problems_hash(problems: Sequence[Problem]) -> str:
    """Of ids, prompts and answers, in whatever file and under whatever keys they stand."""
    content = json.dumps([[problem.id, problem.prompt, problem.answer] for problem in problems])
    return hashlib.sha256(content.encode()).hexdigest()


def read_settings(folder: Path) -> Settings | None:
    """A label's settings; None where the folder is none of a label."""
    path = folder / SETTINGS
    if not path.is_file():
        return None
    try:
        return Settings(**json.loads(path.read_text()))
    except (ValueError, TypeError, OSError) as error:
        raise ConfigError("--out", str(path), f"cannot be read ({error}); name another folder") from error


def check_settings(folder: Path, wanted: Settings) -> Settings:
    """The settings that the label's folder is to have: the wanted ones, with the benchmarks that are there already.

    Raises ConfigError where the samples in the folder were drawn with others.
    """
    present = read_settings(folder)
    if present is None:
        return wanted
    for name, flag in _FLAGS.items():
        if getattr(present, name) != getattr(wanted, name):
            raise ConfigError(flag, _shown(wanted, name), _mend(folder, _shown(present, name)))
    for benchmark, digest in wanted.benchmarks.items():
        if present.benchmarks.get(benchmark, digest) != digest:
            raise ConfigError("--benchmarks", benchmark, _mend(folder, "other problems of that name"))
    return replace(present, benchmarks={**present.benchmarks, **wanted.benchmarks})


def write_settings(folder: Path, settings: Settings) -> None:
    """Durably, as the first file of the folder."""
    write_atomically(folder / SETTINGS, json.dumps(asdict(settings), indent=1) + "\n")


def _shown(settings: Settings, name: str) -> object:
    return settings.model if name == "fingerprint" else getattr(settings, name)


def _mend(folder: Path, found: object) -> str:
    return f"does not go with the samples in {folder}, drawn with {found!r}; name another label or --out"
