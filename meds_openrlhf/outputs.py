"""Files that a user names to be written: never over a device, a folder, a link, or what a run needs."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import replacing
from meds_openrlhf.paths import MemoryPaths, RunPaths


def require_output(path: Path, option: str) -> None:
    """Raise ConfigError about ``option`` if ``path`` is no place for a file; before anything expensive starts."""
    if os.path.isdir(path):
        raise ConfigError(option, str(path), "is a folder. Name a file.")
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise ConfigError(option, str(path), "is there already, and is not a file. Name another.")
    target = Path(os.path.realpath(path))
    for folder in target.parents:
        if MemoryPaths(folder).owns(target):
            raise ConfigError(option, str(path), f"is inside the memory {folder}. Name another file.")
        if RunPaths(folder).owns(target):
            raise ConfigError(option, str(path), f"is a file of the run {folder}. Name another.")


STDOUT = Path("-")


def require_outputs(named: Mapping[str, Path | None]) -> None:
    """Raise ConfigError as `require_output` does, or if two options name one file; `STDOUT` takes one output, too."""
    files = {option: path for option, path in named.items() if path is not None}
    places = [path if path == STDOUT else Path(os.path.realpath(path)) for path in files.values()]
    for place, (option, path) in zip(places, files.items()):
        if places.count(place) > 1:
            raise ConfigError(option, str(path), "is named for two outputs. Name another file.")
        if path != STDOUT:
            require_output(path, option)


@contextmanager
def output_file(path: Path, option: str) -> Iterator[BinaryIO]:
    """Yield a new file that becomes ``path`` if the block succeeds; raises ConfigError if it cannot be written."""
    require_output(path, option)
    try:
        with replacing(path) as file:
            yield file
    except FileNotFoundError as error:
        raise ConfigError(option, str(path), "cannot be written. Name a file in a folder that exists.") from error
    except OSError as error:
        hint = f"cannot be written ({error.strerror or error}). Name another."
        raise ConfigError(option, str(path), hint) from error


def write_output(path: Path, content: str | bytes, option: str) -> None:
    """Write ``content``, text in UTF-8, as `output_file` does, and make the folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(option, str(path), f"cannot be written ({error.strerror}). Name another.") from error
    with output_file(path, option) as file:
        file.write(content.encode() if isinstance(content, str) else content)
