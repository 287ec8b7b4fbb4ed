"""Recording on two ranks: ZeRO-3 and DeepSpeed's tensor parallelism."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from meds_openrlhf.features.layout import padded_positions
from meds_openrlhf.features.recorder import LayerLogitRecorder
from tests.features.models import VOCABULARY, make_model, the_long_way, with_adapters
from tests.features.test_recorder import HAVE, WIDTH, padded_batch
from tests.training.ranks import run_ranks

RANKS = 2
# Tensor parallelism last: DeepSpeed keeps its groups for the process.
MODES = ("zero3", "zero3-lora", "tp")

pytestmark = pytest.mark.e2e


def main(rank: int, ranks: int, port: str, folder: str) -> None:
    """One rank of the recordings in every mode: writes what it recorded to MODE-RANK.pt."""
    import deepspeed

    deepspeed.init_distributed("gloo")
    for mode in MODES:
        inputs, positions, targets = padded_batch("right")
        model = engine_of(mode)
        recorder = LayerLogitRecorder(model, groups=[dist.group.WORLD] if mode == "tp" else [])
        with torch.no_grad(), recorder.record(padded_positions(positions, WIDTH), targets) as recording:
            model(**inputs)
        weight = tuple(recorder._parts.unembedding.weight.shape)
        torch.save({"logits": recording.layer_logits, "weight": weight}, f"{folder}/{mode}-{rank}.pt")


def engine_of(mode: str) -> Any:
    """The tiny model inside a DeepSpeed engine, as OpenRLHF makes one."""
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3 if "zero3" in mode else 0, "stage3_param_persistence_threshold": 0},
        "bf16": {"enabled": mode == "tp"},
        "tensor_parallel": {"autotp_size": RANKS if mode == "tp" else 1},
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
        "zero_allow_untested_optimizer": True,
    }
    model: Any = make_model("qwen2", torch.bfloat16 if mode == "tp" else torch.float32)
    if "lora" in mode:
        model = with_adapters(model)
    if mode == "tp":
        model = deepspeed.tp_model_init(model=model, tp_size=RANKS, dtype=torch.bfloat16)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=config)
    engine.eval()
    return engine


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict]]:
    """What each rank recorded in a mode; one pair of processes runs all modes."""
    folder: Path = tmp_path_factory.mktemp("recorded")
    run_ranks(__name__, RANKS, folder)
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
