"""Recording on two ranks: ZeRO-3 and DeepSpeed's tensor parallelism."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from meds_openrlhf.features.layout import padded_positions
from tests.features.models import VOCABULARY, make_model, the_long_way, with_adapters
from tests.features.test_recorder import HAVE, WIDTH, padded_batch

RANKS = 2
# Tensor parallelism last: DeepSpeed keeps its groups for the process.
MODES = ("zero3", "zero3-lora", "tp")

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict]]:
    """What each rank recorded in a mode; one pair of processes runs all modes."""
    folder = tmp_path_factory.mktemp("recorded")
    script = [sys.executable, "-m", "tests.features.distributed_worker"]
    workers = [
        subprocess.Popen([*script, str(rank), str(folder), *MODES], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for rank in range(RANKS)
    ]
    try:
        outputs = [worker.communicate(timeout=300)[0][-3000:].decode() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert all(worker.returncode == 0 for worker in workers), "\n\n".join(outputs)
    return lambda mode: [torch.load(folder / f"{mode}-{rank}.pt", weights_only=True) for rank in range(RANKS)]


@pytest.mark.parametrize("mode", MODES)
def test_sharded_weights(mode: str, recorded: Callable[[str], list[dict]]) -> None:
    one, other = recorded(mode)
    inputs, positions, targets = padded_batch("right")
    tokens = padded_positions(positions, WIDTH)
    dtype, close = (torch.bfloat16, 2e-2) if mode == "tp" else (torch.float32, 1e-5)
    model = make_model("qwen2", dtype)
    if "lora" in mode:
        model = with_adapters(model).merge_and_unload()
    expected = the_long_way(model, inputs, tokens[HAVE], targets[HAVE])
    for result in (one, other):
        torch.testing.assert_close(result["logits"][HAVE], expected, atol=close, rtol=close)
        assert result["logits"][2].isnan().all()
    assert torch.equal(one["logits"][HAVE], other["logits"][HAVE])
    if "zero3" in mode:
        assert one["weight"] == (0,)  # between passes no rank holds the unembedding
    if mode == "tp":
        assert one["weight"][0] + other["weight"][0] == VOCABULARY  # each rank holds its share of the rows
