"""Check the paths in a run's settings: a job finds only files that are sent with it, and absolute paths."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.config.file_settings import DATA_SUFFIXES, FILE_SETTINGS, RELATIVE_IN_A_JOB
from meds_openrlhf.jobs.packaging import Package


def require_paths(config: RunConfig, config_path: Path, package: Package) -> str:
    """CONFIG's path in the job's copy of the folder. Raises ConfigError if the job would not find a path there."""
    for key, value in _lasting(config):
        if value is not None and "://" not in value and not Path(value).is_absolute():
            raise ConfigError(key, value, RELATIVE_IN_A_JOB)
    for key, path in _read(config):
        _require_sent(key, path, package)
    name = os.path.relpath(config_path.absolute(), package.root)
    _require_sent("CONFIG", name, package)
    return name


def _lasting(config: RunConfig) -> Iterator[tuple[str, str | None]]:
    """Paths that a run writes to, or reads from another run."""
    yield "meds.run_dir", config.meds.run_dir
    yield "meds.memory.branch_from", config.meds.memory.branch_from
    yield "meds.memory.archive", config.meds.memory.archive
    yield "logger.tensorboard_dir", config.openrlhf.get("logger.tensorboard_dir")


def _read(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Relative paths of files and folders that the run reads; commas separate several paths in a setting."""
    named = {key: config.openrlhf.get(key) for key in FILE_SETTINGS}
    for key, value in {**named, "meds.features.function": config.meds.features.function}.items():
        for part in str(value or "").split(","):
            path = part.split("@")[0].strip()
            if path and "://" not in path and not path.startswith(("/", "~")):
                yield key, path


def _require_sent(key: str, path: str, package: Package) -> None:
    """Raise ConfigError if ``path`` is a local path that is not sent, or not completely."""
    name = os.path.normpath(path)
    if name == ".." or name.startswith("../"):
        raise ConfigError(key, path, f"lies outside {package.root}, of which the job gets a copy; {_HINT}")
    if not (package.root / name).exists():
        if path.startswith(".") or Path(path).suffix in DATA_SUFFIXES:
            raise ConfigError(key, path, f"does not exist in {package.root}, of which the job gets a copy; {_HINT}")
        return  # a name on a hub
    missing = package.missing(name)
    if missing is not None:
        where = "it is" if missing == name else f"{missing} is"
        raise ConfigError(
            key,
            path,
            f"would not be sent: {where} left out by .gitignore, .rayignore, or as a run, cache or key; {_HINT}",
        )


_HINT = "move it there, or to storage that every node sees and name it from the root"
