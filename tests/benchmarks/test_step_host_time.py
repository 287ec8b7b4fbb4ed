"""The benchmark of a step's host time."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from meds_openrlhf.training import cpu

if not cpu.has_cuda():
    cpu.install()  # before anything of OpenRLHF's

from benchmarks.stub_models import Lengths


def test_lengths_have_the_mean_and_are_cut() -> None:
    lengths = Lengths.parse("1100,0.6,3072")
    assert lengths == Lengths(1100.0, 0.6, 3072)
    assert lengths.draw(20_000, seed=1).max() == 3072
    whole = Lengths(1100.0, 0.6, 10**9).draw(20_000, seed=1)
    assert np.mean(whole) == pytest.approx(1100, rel=0.02)
    assert np.std(np.log(whole)) == pytest.approx(0.6, rel=0.02)


@pytest.mark.timeout(600)
def test_both_drivers_run_a_whole_step(tmp_path: Path) -> None:
    command = ["-m", "benchmarks.step_host_time", "--rounds", "1", "--prompts", "16", "--lengths", "400,0.5,600"]
    done = subprocess.run(
        [sys.executable, *command, "--json", tmp_path / "times.json"], check=True, capture_output=True, text=True
    )
    (times,) = json.loads((tmp_path / "times.json").read_text()).values()
    assert times.keys() == {"ours", "openrlhf"}
    assert min(times.values()) > 0
    for phase in ("generation calls", "advantages and returns", "hand-over to the ranks", "the memory's answer"):
        assert phase in done.stdout
