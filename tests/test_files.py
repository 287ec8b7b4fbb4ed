"""What is written is durable before it is seen."""

import os
from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf.files import write_atomically
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
