"""A real vLLM engine on the CPU: it has the limits that it is given, and stops generating what is not needed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e import engine_worker

pytestmark = pytest.mark.e2e


def test_an_engine_has_its_limits_and_aborts_prompts(assets: Path) -> None:
    command = [sys.executable, "-m", "tests.e2e.engine_worker", str(assets / "policy")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["limits"] == [engine_worker.SEQUENCES, engine_worker.TOKENS]
    assert seen["left"] == 0  # nothing of the 153,600 tokens that were asked for is generated any more
    assert seen["same"]
    assert seen["seconds"] < 30  # within engine_fleet.CANCEL_SECONDS
