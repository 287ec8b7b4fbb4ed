"""Every micro-batch of an update by tokens reaches the weights, under every ZeRO stage and on both devices.

tests/training/step/test_accumulation.py has whole updates of policy and critic, on CPUs alone.
"""

import json
import subprocess
import sys

import pytest

from tests.gpu.test_zero3 import ON_GPU
from tests.ports import free_ports


@pytest.mark.e2e
@pytest.mark.timeout(120)
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
def test_every_micro_batch_changes_its_weight(device: str, stage: int) -> None:
    command = [sys.executable, "-m", "tests.gpu.gradients_worker", device, str(stage), str(free_ports(1)[0])]
    worker = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert worker.returncode == 0, worker.stderr[-3000:]
    assert json.loads(worker.stdout.splitlines()[-1]) == pytest.approx([-0.125] * 4)
