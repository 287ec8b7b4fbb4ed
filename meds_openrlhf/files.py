"""One way to open a file, and one way to write it; for files of strangers too. SECURITY.md has the limits.

What a user names may be a link or a pipe. Entries of a run's folder may be neither links out of it, which `paths`
refuses where it names them, nor anything but regular files.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

MIB = 2**20
MOST_SETTINGS = 4 * MIB  # of a file that is read at once and holds settings: config.yaml, a manifest
MOST_TEXT = 48 * MIB  # of a line, or of a JSON text: parsed, it takes at most about 30 times as much
MOST_PIPED = 4096 * MIB
MOST_UNPACKED, UNPACKED_TIMES = 256 * MIB, 200  # of a compressed file: this, and so many times its size
SIZE_FACTOR = "--size-factor"  # the option that multiplies the limits
# Errors that a user can correct: a full disk or quota, a folder that is not writable; and in a command's own process,
# the path of a folder where a file belongs, or the other way round.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
PATH_ERRORS = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)

_size_factor = 1.0


class UnusableFileError(OSError):
    """A file that is not opened, read or replaced because of what it is; ``strerror`` says why."""

    def __init__(self, path: Path | str, why: str) -> None:
        super().__init__(errno.EINVAL, why, str(path))

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def raise_limits(factor: float) -> None:
    """Multiply this process's limits of sizes, for files that the user trusts."""
    global _size_factor
    _size_factor = factor


def most_of(limit: int) -> float:
    """A limit of sizes as the user raised it."""
    return limit * _size_factor


def require_size(path: Path | str, size: int, most: int, what: str = "it has") -> None:
    """Raise UnusableFileError if ``size`` (bytes) is above ``most``."""
    if size > most * _size_factor:
        limit = f"at most {most * _size_factor / MIB:,.0f} MiB are read"
        raise UnusableFileError(path, f"{what} {size / MIB:,.0f} MiB; {limit}, or more with {SIZE_FACTOR} N")


def require_unpacked(path: Path | str, packed: int, unpacked: int) -> None:
    """Raise UnusableFileError if a file of ``packed`` bytes would take many times as many in memory."""
    require_size(path, unpacked, MOST_UNPACKED + UNPACKED_TIMES * packed, "unpacked, it has")


def open_file(path: Path, *, named_by_user: bool = False) -> BinaryIO:
    """Open a regular file for reading, through links; nothing blocks.

    With ``named_by_user`` it may be a pipe, which is read to its end into a temporary file first. Raises OSError, which
    is UnusableFileError if it is anything else.
    """
    if named_by_user and stat.S_ISFIFO(os.stat(path).st_mode):
        return _spooled(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return os.fdopen(_regular(descriptor, path), "rb")


def read_file(path: Path, most: int = MOST_SETTINGS, *, named_by_user: bool = False) -> bytes:
    """Read the whole file, of at most ``most`` bytes. Raises OSError as `open_file`."""
    with open_file(path, named_by_user=named_by_user) as file:
        return read_rest(file, path, most)


def read_rest(file: BinaryIO, path: Path | str, most: int) -> bytes:
    """Read an open file from its position on. Raises UnusableFileError if that is more than ``most`` bytes."""
    content = bytearray()
    while part := file.read(MIB):
        content += part
        require_size(path, len(content), most)
    return bytes(content)


def lines_of(file: BinaryIO, path: Path | str) -> Iterator[bytes]:
    """Yield the lines of an open file from its position on. Raises UnusableFileError for one beyond `MOST_TEXT`."""
    while line := file.readline(int(MOST_TEXT * _size_factor) + 1):
        require_size(path, len(line), MOST_TEXT, "a line has")
        yield line


def open_own(path: Path) -> BinaryIO:
    """Open a lock or a log of ours to read it and to append to it, unbuffered; it is made if it does not exist.

    Raises OSError, which is UnusableFileError if it is a link, or not a regular file.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise UnusableFileError(path, "is a link, and must be a file. Remove it") from error
        raise
    return os.fdopen(_regular(descriptor, path), "r+b", buffering=0)


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a new file that durably becomes ``path`` if the block succeeds, and is removed otherwise.

    Readers see either the old or the new content, never a part. Raises OSError, which is UnusableFileError if ``path``
    is something other than a regular file.
    """
    with_what = os.lstat(path).st_mode if os.path.lexists(path) else stat.S_IFREG
    if stat.S_ISDIR(with_what):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(with_what):
        raise UnusableFileError(path, f"is {_kind(with_what)}, which no file replaces")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # nobody can foresee it, and wait there
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write ``content`` to ``path``, and make its folder, as `replacing` does."""
    make_folder(path.parent)
    with replacing(path, mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


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


def cut_torn_line(file: int) -> None:
    """Remove an incomplete last line of an open file (a descriptor), which a killed process leaves."""
    end = os.fstat(file).st_size
    while end and not (part := os.pread(file, min(end, MIB), max(end - MIB, 0))).endswith(b"\n"):
        end -= len(part) - (part.rfind(b"\n") + 1)
    os.ftruncate(file, end)


def make_folder(folder: Path) -> None:
    """Durably make a folder, and those above it, if they are missing."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make a folder's new or renamed entries durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _regular(descriptor: int, path: Path) -> int:
    """``descriptor``, unless its file is not a regular one: then it is closed, and UnusableFileError raised."""
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise UnusableFileError(path, f"is {_kind(mode)}, and must be a file")
    return descriptor


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFLNK: "a link", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _spooled(path: Path) -> BinaryIO:
    file, size = tempfile.TemporaryFile(), 0  # noqa: SIM115  (the caller closes it)
    try:
        with path.open("rb") as pipe:
            while part := pipe.read(MIB):
                size += len(part)
                require_size(path, size, MOST_PIPED)
                file.write(part)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file  # type: ignore[return-value]
