"""One rank of distributed recordings, run as a script by test_distributed: writes what it recorded to MODE-RANK.pt.

python -m tests.features.distributed_worker RANK FOLDER MODE...
"""

import os
import sys
from typing import Any

from meds_openrlhf.training.openrlhf import cpu

RANKS = 2


def engine_of(mode: str) -> Any:
    """The tiny model inside a DeepSpeed engine, as OpenRLHF makes one."""
    import deepspeed
    import torch

    from tests.features.models import make_model, with_adapters

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


def main(rank: int, folder: str, modes: list[str]) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT="0",
        DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1",
    )  # fmt: skip
    # Without it, DeepSpeed compiles an extension, in a folder that all of this user's processes share and rewrite.
    cpu.install()
    import torch.distributed as dist

    # The ranks meet in a file: a port that was free may be taken when the first rank has loaded its libraries.
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=RANKS)
    for mode in modes:
        record(mode, rank, f"{folder}/{mode}-{rank}.pt")
    dist.destroy_process_group()


def record(mode: str, rank: int, out: str) -> None:
    import torch
    import torch.distributed as dist

    from meds_openrlhf.features.layout import padded_positions
    from meds_openrlhf.features.recorder import LayerLogitRecorder
    from tests.features.test_recorder import WIDTH, padded_batch

    inputs, positions, targets = padded_batch("right")
    model = engine_of(mode)
    recorder = LayerLogitRecorder(model, groups=[dist.group.WORLD] if mode == "tp" else [])
    with torch.no_grad(), recorder.record(padded_positions(positions, WIDTH), targets) as recording:
        model(**inputs)
    weight = tuple(recorder._parts.unembedding.weight.shape)
    torch.save({"logits": recording.layer_logits, "weight": weight}, out)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
