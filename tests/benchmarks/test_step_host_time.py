"""The benchmark of a step's host time."""

import subprocess
import sys

import pytest


@pytest.mark.timeout(600)
def test_both_drivers_run_a_whole_step() -> None:
    command = [sys.executable, "-m", "benchmarks.step_host_time", "--quick", "--rounds", "1"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    seconds = {row[0]: float(row[1].split()[0]) for row in rows[1:]}
    assert min(seconds.values()) > 0
    both = {row[0] for row in rows[1:] if len(row) > 3 and row[3]}
    assert {"generation calls", "advantages and returns", "hand-over to the ranks", "total"} <= both
    assert "the memory's answer" in seconds
