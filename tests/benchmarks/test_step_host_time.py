"""The benchmark of a step's host time."""

import subprocess
import sys

import pytest


@pytest.mark.timeout(600)
def test_both_drivers_run_a_whole_step() -> None:
    command = [sys.executable, "-m", "benchmarks.step_host_time", "--quick", "--rounds", "1"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    seconds = {row[0]: [float(cell.split()[0]) for cell in (row[1], row[2])] for row in rows[1:]}
    assert list(seconds) == ["generation calls", "train step", "total"]
    assert all(ours > 0 and plain > 0 for ours, plain in seconds.values())
