"""`meds plan` on a running cluster: what is there is read from Ray, and nothing is left behind."""

import os
import subprocess
from pathlib import Path

from tests.e2e.conftest import MEDS, command


def plan(assets: Path, run_dir: Path, address: str, *overrides: str) -> "subprocess.CompletedProcess[str]":
    words = command(assets, run_dir, *overrides)
    words[len(MEDS)] = "plan"
    return subprocess.run(
        words, env={**os.environ, "RAY_ADDRESS": address}, capture_output=True, text=True, timeout=120
    )


def test_the_plan_for_a_running_cluster(assets: Path, cluster: str, tmp_path: Path) -> None:
    found = plan(assets, tmp_path / "run", cluster, "--gpu-memory=24")
    assert found.returncode == 0, found.stderr
    assert "on 1 node with 8 GPUs and 32 CPUs, 24 GB per GPU\n" in found.stdout
    assert "P E · · · · · ·  4 of 32 (2 shards)  0 of " in found.stdout
    assert "(sizes from its configuration)\n" in found.stdout
    assert not (tmp_path / "run").exists()

    nameless = plan(assets, tmp_path / "run", cluster)
    assert nameless.returncode == 0, nameless.stderr
    assert "  memory  unknown: Ray names no accelerator type that is known\n" in nameless.stdout

    small = plan(assets, tmp_path / "run", cluster, "--vllm.num_engines=9")
    assert small.returncode == 1
    needs = "it needs 1 GPU for policy, 9 GPUs for engines and 13 CPUs; free are 8 GPUs and 32 CPUs on "
    assert needs in small.stderr
    assert small.stderr.endswith("; lower vllm.num_engines or add nodes\n")
