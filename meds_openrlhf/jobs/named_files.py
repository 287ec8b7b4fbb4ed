"""Paths that a run's settings name: a job finds only what goes along with it, or what is named from the root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.config.file_settings import DATA_SUFFIXES, FILE_SETTINGS, RELATIVE_IN_A_JOB
from meds_openrlhf.jobs.packaging import Package


def require_paths(config: RunConfig, config_path: Path, package: Package) -> str:
    """CONFIG's path in the job's copy of the folder. Raises ConfigError for whatever the job would not find there."""
    for key, value in _lasting(config):
        if value is not None and "://" not in value and not Path(value).is_absolute():
            raise ConfigError(key, value, RELATIVE_IN_A_JOB)
    for key, path in _read(config):
        _require_sent(key, path, package)
    name = os.path.relpath(config_path.absolute(), package.root)
    _require_sent("CONFIG", name, package)
    return name


def _lasting(config: RunConfig) -> Iterator[tuple[str, str | None]]:
    """What a run writes, or reads of another run."""
    yield "meds.run_dir", config.meds.run_dir
    yield "meds.memory.branch_from", config.meds.memory.branch_from
    yield "meds.memory.archive", config.meds.memory.archive
    yield "logger.tensorboard_dir", config.openrlhf.get("logger.tensorboard_dir")


def _read(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Files and folders to be read, by relative paths; several of a setting are parted by commas."""
    for key in FILE_SETTINGS:
        for part in str(config.openrlhf.get(key) or "").split(","):
            path = part.split("@")[0].strip()
            if path and "://" not in path and not path.startswith(("/", "~")):
                yield key, path


def _require_sent(key: str, path: str, package: Package) -> None:
    """Raise ConfigError where ``path`` is one of this machine's and does not go along, or not whole."""
    name = os.path.normpath(path)
    if name == ".." or name.startswith("../"):
        raise ConfigError(key, path, f"lies outside {package.root}, of which the job gets a copy; {_MEND}")
    if not (package.root / name).exists():
        if path.startswith(".") or Path(path).suffix in DATA_SUFFIXES:
            raise ConfigError(key, path, f"does not exist in {package.root}, of which the job gets a copy; {_MEND}")
        return  # a name on a hub
    missing = package.missing(name)
    if missing is not None:
        where = "it is" if missing == name else f"{missing} is"
        raise ConfigError(
            key,
            path,
            f"would not be sent: {where} left out by .gitignore, .rayignore, or as a run, cache or key; {_MEND}",
        )


_MEND = "move it there, or to storage that every node sees and name it from the root"
