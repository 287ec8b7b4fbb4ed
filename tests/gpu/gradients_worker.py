"""A rank alone makes an update of four micro-batches, each of which touches one weight; prints the four changes.

python -m tests.gpu.gradients_worker DEVICE STAGE PORT
"""

import json
import os
import sys
from types import SimpleNamespace


def main(device: str, stage: int, port: str) -> None:
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    os.environ["DS_ACCELERATOR"] = device
    from meds_openrlhf.training.host import cpu

    if device == "cpu":
        cpu.install()  # as in a run: nothing is compiled
    import deepspeed
    import torch

    from meds_openrlhf.training.step.update import _say_whether_last

    deepspeed.init_distributed("nccl" if device == "cuda" else "gloo")
    model = torch.nn.Linear(4, 1, bias=False).to(torch.bfloat16)
    torch.nn.init.zeros_(model.weight)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "Adam", "params": {"lr": 0.125, "torch_adam": device == "cpu"}},
    }
    engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
    buffer = SimpleNamespace(dynamic_batch=True, dynamic_optimizer_step=[0, 0, 0, 1])
    for number in range(4):
        _say_whether_last(engine, buffer, number)
        row = torch.zeros(1, 4, dtype=torch.bfloat16, device=device)
        row[0, number] = 1
        engine.backward(engine(row).float().sum())
    engine.step()
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), enabled=stage == 3):
        print(json.dumps(engine.module.weight.detach().float().cpu().reshape(-1).tolist()))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
