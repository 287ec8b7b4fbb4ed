"""One rank of a small training with DeepSpeed, run as a script: a checkpoint as a run leaves it, and the true weights.

python -m tests.evaluation.checkpoint_worker RANK RANKS PORT STAGE RUN_FOLDER
"""

import os
import sys
from pathlib import Path
from typing import Any

from meds_openrlhf.checkpoints import mark_complete
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.training import cpu


def main(rank: int, ranks: int, port: str, stage: int, folder: Path) -> None:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    cpu.install()
    import deepspeed
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "base"), dtype=torch.bfloat16)
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
    paths = RunPaths(folder)
    engine.save_checkpoint(str(paths.policy_checkpoints), tag="global_step1")
    weights = engine._consolidated_16bit_state_dict() if stage == 3 else engine.module.state_dict()
    if rank == 0:
        save_file({name: weight.clone() for name, weight in weights.items()}, folder / "true.safetensors")
        mark_complete(paths, "global_step1", 1)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), Path(sys.argv[5]))
