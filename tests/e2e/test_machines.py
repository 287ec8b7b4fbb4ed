"""`meds plan` on a running cluster and `meds doctor` on this machine: nothing is left behind."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import MEDS, command, finished


def test_the_plan_for_a_running_cluster(assets: Path, cluster: str, tmp_path: Path) -> None:
    """What is there is read from Ray."""

    def plan(*overrides: str) -> subprocess.CompletedProcess[str]:
        words = command(assets, tmp_path / "run", *overrides)
        return finished([*MEDS, "plan", *words[len(MEDS) + 1 :]], cluster)

    found = plan("--gpu-memory=24")
    assert found.returncode == 0, found.stderr
    assert re.search(r" on \S+ with 8 GPUs and 32 CPUs, 24 GB per GPU\n", found.stdout)
    assert re.search(r"P E · · · · · ·  4 of 32 \(2 shards\) +0 of ", found.stdout), found.stdout
    assert re.search(r"  model  .*, 0.00 B parameters\n", found.stdout), found.stdout
    assert not (tmp_path / "run").exists()

    nameless = plan()
    assert nameless.returncode == 1, nameless.stderr
    assert "  memory  unknown: Ray names no known accelerator type\n" in nameless.stdout

    written = json.loads(plan("--gpu-memory=24", "--json").stdout)
    assert written["problems"] == []
    assert list(written["roles"]) == ["policy", "engines"]
    assert json.loads(plan("--json").stdout)["problems"] == ["memory unknown: Ray names no known accelerator type"]

    small = plan("--vllm.num_engines=9")
    assert small.returncode == 1
    assert "the cluster has no room for 1 GPU for policy, 9 GPUs for engines and 13 CPUs" in small.stderr
    assert small.stderr.endswith(" with 8 GPUs and 32 CPUs. Lower vllm.num_engines or add nodes.\n")


@pytest.mark.slow
def test_the_doctor_on_a_sound_machine(tmp_path: Path) -> None:
    """With its training."""
    ended = finished([*MEDS, "doctor", "--folder", str(tmp_path / "runs")])
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert {line[:5].strip() for line in lines} == {"ok"}
    assert [line[24:32].strip() for line in lines] == ["W&B", "storage", "GPUs", "network", "training", "sharing"]
    for line in lines[-2:]:
        assert line[34:].startswith("a tiny policy trained; engines and policy differ by 0.00")
    assert list((tmp_path / "runs").iterdir()) == []
