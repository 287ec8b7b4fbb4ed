"""The command, without the training."""

import json
from pathlib import Path

import pytest
import ray

from meds_openrlhf.doctor import checks
from meds_openrlhf.doctor.checks import Finding
from meds_openrlhf.runtime import ray_connection
from tests.cli.conftest import Meds
from tests.failing import failing


@pytest.fixture(autouse=True)
def _cluster(meds: Meds, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of a node without GPUs."""
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(checks, "examine_nodes", lambda folder: [Finding("10.0.0.1", "storage", f"{folder}: shared")])
    monkeypatch.setattr(checks, "gpus_of_nodes", lambda: ({"10.0.0.1": 8}, False))


def test_lines_and_the_exit_code(tmp_path: Path, meds: Meds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    lines = meds.output("doctor", "--quick", "--folder", tmp_path).splitlines()
    assert lines[1].startswith("warning: this Ray cluster asks for no token")
    assert lines[2:] == [f"ok     10.0.0.1         storage   {tmp_path}: shared"]
    monkeypatch.setattr(checks, "gpus_of_nodes", lambda: ({}, True))  # as before GPU nodes have joined
    code, printed, _ = meds("doctor", "--folder", tmp_path)
    assert code == 1
    assert printed.splitlines()[-1].startswith(
        "WRONG  cluster          GPUs      Ray has none on any node; wait for GPU"
    )


def test_checks_as_lines_of_json(tmp_path: Path, meds: Meds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "gpus_of_nodes", lambda: ({}, True))
    code, printed, said = meds("doctor", "--json", "--folder", tmp_path)
    found = [json.loads(line) for line in printed.splitlines()]
    assert code == 1
    assert [line["result"] for line in found[-2:]] == ["ok", "WRONG"]
    assert found[-1]["advice"] == "wait for GPU nodes, or start Ray there"
    assert "asks for no token" in said


LOST = ConnectionError("Could not find any"), "(Could not find any)"
VERSIONS = RuntimeError("Version mismatch: The cluster has:\n    Ray: 2.54.0"), "Version mismatch: The cluster has: Ray"


@pytest.mark.parametrize(("error", "message"), [LOST, VERSIONS])
def test_a_cluster_that_cannot_be_joined(
    error: Exception, message: str, meds: Meds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "init", failing(error))
    monkeypatch.setattr(ray_connection, "_require_answer", lambda _address: None)
    code, _, refusal = meds("doctor", "--quick", "--address", "10.0.0.1:6379")
    assert code == 2
    assert refusal.startswith("meds: RAY_ADDRESS=10.0.0.1:6379: ")
    assert message in refusal
