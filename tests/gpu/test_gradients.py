"""DeepSpeed's own stages on both devices: updates by tokens, and recording while the unembedding is trained.

tests/training/step/test_accumulation.py has whole updates of policy and critic under every stage, on CPUs alone.
"""

import json
import subprocess
import sys

import pytest
import torch

from tests.processes import free_ports

ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

pytestmark = pytest.mark.e2e


def last_line(device: str, stage: int, program: str) -> str:
    command = [sys.executable, "-m", "tests.gpu.rank", device, str(free_ports(1)[0]), str(stage), program]
    rank = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert rank.returncode == 0, rank.stderr[-3000:]
    return rank.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("device", "stage"), [("cpu", 3), *(pytest.param("cuda", stage, marks=ON_GPU) for stage in (1, 2, 3))]
)
def test_every_micro_batch_changes_its_weight(device: str, stage: int) -> None:
    assert json.loads(last_line(device, stage, "gradients")) == pytest.approx([-0.125] * 4)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
def test_record_train_record_under_zero3(device: str) -> None:
    assert last_line(device, 3, "recorder") == "equal before and after an update"
