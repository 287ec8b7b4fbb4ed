"""Atomic and durable file writes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meds_openrlhf.config.errors import ConfigError


@contextmanager
def published_file(target: Path) -> Iterator[Path]:
    """Yield a temporary path; its file becomes ``target`` if the block succeeds, and is removed otherwise.

    Raises ConfigError, naming ``--out``, if the file cannot be written.
    """
    if target.is_dir() or not target.parent.is_dir():
        raise ConfigError("--out", str(target), "cannot be written. Name a file in a folder that exists.")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise ConfigError("--out", str(target), f"cannot be written ({error.strerror or error}).") from error
    finally:
        temporary.unlink(missing_ok=True)


def refuse_inside(target: Path, folder: Path) -> None:
    """Raise ConfigError if ``target`` is inside ``folder``, so that input files are not overwritten."""
    if folder.resolve() in target.resolve().parents:
        raise ConfigError("--out", str(target), f"is inside the memory {folder}. Name another file.")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Durably write ``content`` to ``path``; readers see either the old or the new content, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")  # two nodes may write the same path
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def append_whole(file: int, content: bytes) -> None:
    """Append ``content`` durably to an open file (a descriptor); on an error or an interrupt, nothing is appended."""
    size, rest = os.fstat(file).st_size, memoryview(content)
    try:
        while rest:  # a single write may take less: 2 GB at most, or what fits on the disk
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    except BaseException:  # also on Ctrl-C
        os.ftruncate(file, size)
        raise


def cut_torn_line(path: Path) -> None:
    """Remove an incomplete last line, which a killed process leaves."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        if file.read(1) not in (b"\n", b""):
            file.seek(0)
            file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))


def sync_folder(folder: Path) -> None:
    """Make a folder's new or renamed entries durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
