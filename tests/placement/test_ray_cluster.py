"""What a node's driver says of its GPUs."""

from pathlib import Path

import pytest

from meds_openrlhf.placement.ray_cluster import smallest_card


@pytest.mark.parametrize(
    ("answer", "gb"),
    [("echo 40960; echo 81920", 40.0), ("echo 143771", 140.4), ("exit 9", None), ("echo [N/A]", None), ("true", None)],
)
def test_the_smallest_card_is_what_the_driver_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, gb: float | None
) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{answer}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert smallest_card() == (None if gb is None else pytest.approx(gb, abs=0.05))


def test_a_machine_without_a_driver_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert smallest_card() is None
