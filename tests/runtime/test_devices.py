"""What a node's driver says of its GPUs, a driver that is too old for torch, and the environment without one."""

from pathlib import Path

import pytest
import torch

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.doctor.checks import examine
from meds_openrlhf.runtime import devices
from meds_openrlhf.runtime.devices import old_driver, smallest_card


def test_a_cpu_runs_threads_are_the_users_and_one_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in devices.OF_THE_USER:
        monkeypatch.delenv(name, raising=False)
    assert devices.cpu_environment() == devices.CPU_ENVIRONMENT
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    assert devices.cpu_environment() == {**devices.CPU_ENVIRONMENT, "OMP_NUM_THREADS": "4"}


def answers(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nvidia-smi is this script."""
    command = folder / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("answer", "gb"),
    [("echo 40960; echo 81920", 40.0), ("echo 143771", 140.4), ("exit 9", None), ("echo [N/A]", None), ("true", None)],
)
def test_the_smallest_card_is_what_the_driver_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, gb: float | None
) -> None:
    answers(tmp_path, answer, monkeypatch)
    assert smallest_card() == (None if gb is None else pytest.approx(gb, abs=0.05))
    (tmp_path / "nvidia-smi").unlink()
    assert smallest_card() is old_driver() is None


@pytest.mark.parametrize(
    ("cuda", "driver", "old"),
    [("13.0", "550.54.15", True), ("13.0", "580.65.06", False), ("12.8", "550.54.15", False), (None, "470.1", False)],
)
def test_a_driver_too_old_for_torch_is_named_by_train_and_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: str | None, driver: str, old: bool
) -> None:
    answers(tmp_path, f"echo {driver}", monkeypatch)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(devices, "has_cuda", lambda: False)  # torch sees nothing, as with an old driver
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    advice = f"driver {driver} is too old for CUDA {cuda} of torch {torch.__version__}. Update it to 580 or newer."
    with pytest.raises(ConfigError) as refused:
        devices.runs_on_cpu(False, "meds.allow_cpu", "this machine has no GPU.")
    expected = f"torch cannot use this machine's GPUs: {advice}" if old else "this machine has no GPU."
    assert (refused.value.field, refused.value.hint) == ("meds.allow_cpu", expected)
    findings, _ = examine("n", tmp_path / "token", compiles=False)
    assert [finding.advice for finding in findings if finding.check == "GPUs"] == ([advice] if old else [])
