"""The command, without the training."""

import json
from pathlib import Path

import pytest
import ray

from meds_openrlhf.cli.main import main
from meds_openrlhf.doctor import cluster


def test_a_line_per_check_and_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert main(["doctor", "--quick", "--folder", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * 2
    monkeypatch.setattr(cluster, "LEAST_DISK", 2**60)
    assert main(["doctor", "--quick", "--json", "--folder", str(tmp_path)]) == 1
    findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (wrong,) = [finding for finding in findings if finding["result"] == "WRONG"]
    assert (wrong["node"], wrong["check"]) == ("this machine", "storage")
    assert "make room" in wrong["advice"]


def test_a_cluster_that_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "")  # restored afterwards; the command sets it
    assert main(["doctor", "--quick", "--address", "127.0.0.1:9", "--folder", str(tmp_path)]) == 2
    assert "--address: '127.0.0.1:9' names no Ray cluster that answers" in capsys.readouterr().err


def test_a_cluster_without_gpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is before its GPU nodes have joined."""
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(cluster, "examine_nodes", lambda _: iter(()))
    monkeypatch.setattr(cluster, "gpu_nodes", lambda: cluster.GpuNodes(0, 0, made_up=True))
    assert main(["doctor", "--folder", str(tmp_path)]) == 1
    assert "Ray has none on any node; no run can be placed" in capsys.readouterr().out


def test_a_cluster_of_another_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.54.0")

    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setattr(ray, "init", refuse)
    assert main(["doctor", "--folder", str(tmp_path)]) == 2
    assert "cannot be joined: Version mismatch: The cluster was started with: Ray: 2.54.0" in capsys.readouterr().err
