"""One rank of two small trainings with DeepSpeed, run as a script: checkpoints as runs leave them, and true weights.

python -m tests.e2e.checkpoint_worker RANK RANKS PORT RUN_OF_ZERO_2 RUN_OF_ZERO_3
"""

import os
import sys
from pathlib import Path
from typing import Any

from meds_openrlhf.checkpoints import mark_complete
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.training.openrlhf import cpu


def main(rank: int, ranks: int, port: str, folders: dict[int, Path]) -> None:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    cpu.install()
    import deepspeed
    import torch

    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    for stage, folder in folders.items():
        train(rank, stage, RunPaths(folder))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def train(rank: int, stage: int, paths: RunPaths) -> None:
    """One step, and its checkpoint."""
    import deepspeed
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(paths.root / "base"), dtype=torch.bfloat16)
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine: Any = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]
    tokens = torch.arange(rank, rank + 16)[None]
    engine.backward(engine(input_ids=tokens, labels=tokens).loss)
    engine.step()
    engine.save_checkpoint(str(paths.policy_checkpoints), tag="global_step1")
    weights = engine._consolidated_16bit_state_dict() if stage == 3 else engine.module.state_dict()
    if rank == 0:
        save_file({name: weight.clone() for name, weight in weights.items()}, paths.root / "true.safetensors")
        mark_complete(paths, "global_step1", 1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], {2: Path(sys.argv[4]), 3: Path(sys.argv[5])})
