"""What is written is durable before it is seen, and nothing but files is opened or replaced."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf import files
from meds_openrlhf.files import MOST_SETTINGS, UnusableFileError, open_file, open_own, read_file, write_atomically
from tests.failing import failing


def test_content_is_synced_before_its_name_and_the_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, str]] = []
    sync, rename = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        sync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        done.append(("fsync", "folder" if path.is_dir() else path.read_text()))

    def renamed(source: Any, target: Any) -> None:
        rename(source, target)
        done.append(("rename", Path(target).name))

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    write_atomically(tmp_path / "latest", "global_step5")
    assert done == [("fsync", "global_step5"), ("rename", "latest"), ("fsync", "folder")]


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "latest", "global_step5")

    monkeypatch.setattr(os, "fsync", failing(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "latest", "global_step6")
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]
    assert (tmp_path / "latest").read_text() == "global_step5"


@pytest.mark.parametrize("link", ["to a file", "to a folder", "to nothing"])
def test_a_link_is_neither_replaced_nor_followed(tmp_path: Path, link: str) -> None:
    (tmp_path / "victim").write_text("precious")
    target = {"to a file": "victim", "to a folder": ".", "to nothing": "nowhere"}[link]
    (tmp_path / "latest").symlink_to(target)
    with pytest.raises(UnusableFileError, match="latest: is a link"):
        write_atomically(tmp_path / "latest", "gone")
    with pytest.raises(UnusableFileError, match="latest: is a link"):
        open_own(tmp_path / "latest")
    assert (tmp_path / "victim").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "victim"]


def test_nobody_foresees_the_name_under_which_a_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    real = os.open

    def opened(path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            names.append(Path(path).name)
            assert flags & os.O_EXCL
            assert flags & os.O_NOFOLLOW
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", opened)
    for _ in range(3):
        write_atomically(tmp_path / "latest", "x", 0o600)
    assert len(set(names)) == 3
    assert all(len(name) > len(".latest.tmp") + 16 for name in names)
    assert (tmp_path / "latest").stat().st_mode & 0o777 == 0o600


def test_only_regular_files_are_opened_and_nothing_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name, kind in {"pipe": "a pipe", "zero": "a device", "folder": "a folder"}.items():
        with pytest.raises(UnusableFileError, match=f"{name}: is {kind}, and must be a file"):
            open_file(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "nowhere")


def test_a_pipe_that_the_user_names_is_read_to_its_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    content = b"line\n" * 100_000
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(content,))
    writer.start()
    assert read_file(tmp_path / "pipe", named_by_user=True) == content
    writer.join()


def test_sizes_are_bounded_and_the_user_can_raise_the_bounds(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"x" * 3000 + b"\nshort\n")
    try:
        files.raise_limits(1000 / MOST_SETTINGS)
        with pytest.raises(
            UnusableFileError, match=r"long: it has 0 MiB; at most 0 MiB are read, or more with --size-factor N"
        ):
            read_file(path)
        files.raise_limits(1000 / files.MOST_TEXT)
        with open_file(path) as file, pytest.raises(UnusableFileError, match="a line has"):
            list(files.lines_of(file, path))
    finally:
        files.raise_limits(1.0)
    with open_file(path) as file:
        assert [len(line) for line in files.lines_of(file, path)] == [3001, 6]
    files.require_unpacked(path, 1_000_000, 400_000_000)
    with pytest.raises(UnusableFileError, match="unpacked, it has 572 MiB; at most 447 MiB"):
        files.require_unpacked(path, 1_000_000, 600_000_000)


@pytest.mark.parametrize(
    ("content", "left"),
    [
        (b"", b""),
        (b"whole\n", b"whole\n"),
        (b"torn", b""),
        (b"whole\ntorn", b"whole\n"),
        (b"a\n" + b"x" * 3_000_000, b"a\n"),
    ],
)
def test_a_torn_line_is_cut(tmp_path: Path, content: bytes, left: bytes) -> None:
    (tmp_path / "log").write_bytes(content)
    with open_own(tmp_path / "log") as file:
        files.cut_torn_line(file.fileno())
    assert (tmp_path / "log").read_bytes() == left
