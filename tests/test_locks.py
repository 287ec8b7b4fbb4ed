"""Locks on files, where the file system has them and where not."""

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from meds_openrlhf import locks
from meds_openrlhf.locks import FolderInUseError, NoLocksError, lock_folder, try_lock
from tests.processes import wait_until


def opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT)


def test_one_writer_or_many_readers(tmp_path: Path) -> None:
    first, second, third = (opened(tmp_path / "lock") for _ in range(3))
    assert try_lock(first, shared=True)
    assert try_lock(second, shared=True)
    assert not try_lock(third)
    os.close(first)
    os.close(second)
    assert try_lock(third)
    os.close(third)
    with pytest.raises(OSError, match="Bad file descriptor"):  # which is not taken for a lock
        try_lock(third, optional=True)
    path = tmp_path / "folder"  # that may not be locked is not
    with lock_folder(path, None), lock_folder(path, 0.0), lock_folder(path, None):
        assert path.read_text().startswith("process ")


def test_a_lock_that_is_released_late_is_waited_for_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(locks, "WARN_AFTER_SECONDS", 0.3)
    holder = lock_folder(tmp_path / "lock", 0.0)
    name = f"process {os.getpid()} on "
    with pytest.raises(FolderInUseError, match=f"is in use by {name}"):
        lock_folder(tmp_path / "lock", 0.1)
    assert caplog.records == []
    threading.Thread(target=lambda: (wait_until(lambda: bool(caplog.records)), holder.close())).start()
    lock_folder(tmp_path / "lock", 60.0).close()
    (record,) = caplog.records
    assert f"waiting up to 60 s (meds.lock_seconds) for this lock, held by {name}" in record.getMessage()


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    without_locks(monkeypatch, code)
    file = opened(tmp_path / "lock")
    with pytest.raises(NoLocksError, match="the file system has no file locks"):
        try_lock(file)
    assert try_lock(file, optional=True)
    os.close(file)


def without_locks(monkeypatch: pytest.MonkeyPatch, code: int = errno.ENOLCK) -> None:
    def flock(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
