"""Recording under ZeRO-3 while the unembedding is trained."""

import subprocess
import sys

import pytest
import torch

from tests.ports import free_ports

ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
def test_record_train_record(device: str) -> None:
    command = [sys.executable, "-m", "tests.gpu.zero3_worker", device, str(free_ports(1)[0])]
    worker = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert "equal before and after an update" in worker.stdout, worker.stderr[-3000:]
