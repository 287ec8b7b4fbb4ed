"""The checks of a node, each with the fault that it is for."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from meds_openrlhf.doctor import node as checks
from meds_openrlhf.doctor.finding import Finding
from meds_openrlhf.locks import try_lock
from tests.test_locks import without_locks

TOKEN = ".meds-doctor-x"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with the token of another process, locked by it."""
    with (tmp_path / TOKEN).open("w") as file:
        assert try_lock(file.fileno())
        yield tmp_path


def storage(folder: Path) -> list[str]:
    return [str(finding) for finding in checks._storage("n", folder, TOKEN)]


def test_a_sound_node(folder: Path) -> None:
    report = checks.examine("10.0.0.1", folder, TOKEN, has_gpus=False)
    assert {finding.word for finding in report.findings} == {"ok"}
    assert [finding.check for finding in report.findings] == ["versions", "memory", "storage", "locks"]
    assert report.versions["ray"] == "2.55.0"
    assert {"python", "torch", "vllm", "deepspeed", "openrlhf", "transformers"} <= report.versions.keys()
    assert [path.name for path in folder.iterdir()] == [TOKEN]


def test_versions_that_do_not_belong_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        checks, "_pins", lambda: {"ray": "1.0", "openrlhf": "0.11.2", "no-such": "3", "flash-attn": "1"}
    )
    (finding,) = checks._versions("n", has_gpus=False)
    assert finding.word == "WRONG"
    assert finding.found == "ray 2.55.0 (wanted: 1.0), no-such is missing (wanted: 3)"
    (finding,) = checks._versions("n", has_gpus=True)
    assert "flash-attn" in finding.found


CARD = "NVIDIA H200, 580.65.06, 143771"


@pytest.mark.parametrize(
    ("script", "found", "word"),
    [
        (f"echo '{CARD}, 4'; echo '{CARD}, 600'", "2 x NVIDIA H200 of 140 GB, driver 580.65.06", "ok"),
        (
            f"echo '{CARD}, 4'; echo '{CARD}, 40960'",
            "2 x NVIDIA H200 of 140 GB, driver 580.65.06, GPU 1: 40 GB",
            "WRONG",
        ),
        ("exit 9", "nvidia-smi: Command", "WRONG"),
    ],
)
def test_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, found: str, word: str) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (finding,) = checks._gpus("n")
    assert finding.found.startswith(found)
    assert finding.word == word


def test_a_driver_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = checks._gpus("n")
    assert finding.word == "WRONG"


def test_a_containers_small_shared_memory() -> None:
    assert str(checks._shared_memory("n", 64 * 2**20)).startswith(
        "WRONG  n                memory    /dev/shm of 0.1 GB"
    )
    assert checks._shared_memory("n", 64 * 2**30).word == "ok"


def test_a_folder_that_is_not_shared_or_not_writable(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("another")
    (line,) = storage(other)
    assert "does not show what another node wrote; it is another folder there: name one with --folder" in line
    (line,) = checks._storage("n/a", folder, TOKEN)  # a name that makes no file
    assert "No such file or directory; a run writes there from every node" in str(line)


def test_storage_that_is_slow_or_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "fsync_seconds", lambda _: 0.8)
    assert storage(folder)[0].startswith("slow ")
    assert "a durable write takes 800 ms" in storage(folder)[0]
    monkeypatch.setattr(checks, "LEAST_DISK", 2**60)
    assert storage(folder)[0].startswith("WRONG")
    assert "make room" in storage(folder)[0]


def test_locks_that_are_missing_or_not_shared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks._locks("n", folder / TOKEN) == Finding("n", "locks", "another process's lock is seen")
    free = folder / "free"
    free.touch()
    assert "another node's lock is not seen here; nothing keeps two runs out" in str(checks._locks("n", free))
    assert "writable on the others" in str(checks._locks("n", folder))  # which opens as little as another user's file
    without_locks(monkeypatch)
    assert "no file locks (flock); mount it with them" in str(checks._locks("n", folder / TOKEN))
