"""A rank alone under DeepSpeed, as a script: `python -m tests.gpu.rank DEVICE PORT STAGE PROGRAM`."""

import json
import os
import sys
from types import SimpleNamespace


def main(device: str, port: str, stage: int, program: str) -> None:
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    os.environ["DS_ACCELERATOR"] = device
    from meds_openrlhf.training.openrlhf import cpu

    if device == "cpu":
        cpu.install()  # as in a run: nothing is compiled
    import deepspeed
    import torch

    deepspeed.init_distributed("nccl" if device == "cuda" else "gloo")
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
    {"gradients": gradients, "recorder": recorder}[program](device, config)
    torch.distributed.destroy_process_group()


def gradients(device: str, config: dict) -> None:
    """An update of four micro-batches, each of which touches one weight; prints the four changes."""
    import deepspeed
    import torch

    from meds_openrlhf.training.step.update import _say_whether_last

    model = torch.nn.Linear(4, 1, bias=False).to(torch.bfloat16)
    torch.nn.init.zeros_(model.weight)
    config |= {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    config["optimizer"] = {"type": "Adam", "params": {"lr": 0.125, "torch_adam": device == "cpu"}}
    engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
    buffer = SimpleNamespace(dynamic_batch=True, dynamic_optimizer_step=[0, 0, 0, 1])
    for number in range(4):
        _say_whether_last(engine, buffer, number)
        row = torch.zeros(1, 4, dtype=torch.bfloat16, device=device)
        row[0, number] = 1
        engine.backward(engine(row).float().sum())
    engine.step()
    stage = config["zero_optimization"]["stage"]
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), enabled=stage == 3):
        print(json.dumps(engine.module.weight.detach().float().cpu().reshape(-1).tolist()))


def recorder(device: str, config: dict) -> None:
    """Records, trains and records again, beside the long way."""
    import deepspeed
    import torch

    from meds_openrlhf.features.layout import padded_positions
    from tests.features.models import make_model, the_long_way
    from tests.features.test_recorder import HAVE, WIDTH, padded_batch, record

    config["train_micro_batch_size_per_gpu"] = 4
    config["optimizer"] = {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": device == "cpu"}}
    engine, *_ = deepspeed.initialize(model=make_model("qwen2", torch.bfloat16), config=config)
    plain = make_model("qwen2", torch.bfloat16).to(device)
    inputs, positions, targets = padded_batch("right")
    inputs = {name: value.to(device) for name, value in inputs.items()}
    tokens, before = padded_positions(positions, WIDTH), None
    for _ in range(2):
        recorded = record(engine, inputs, tokens, targets)[HAVE]
        for name, parameter in engine.module.named_parameters():
            with deepspeed.zero.GatheredParameters(parameter), torch.no_grad():
                plain.get_parameter(name).copy_(parameter)
        expected = the_long_way(plain, inputs, tokens[HAVE].to(device), targets[HAVE].to(device))
        torch.testing.assert_close(recorded, expected, atol=2**-6, rtol=2**-5)
        assert before is None or (recorded - before).abs().max() > 0.1, "the weights did not change"
        before = recorded
        engine.backward(engine(**inputs, labels=inputs["input_ids"]).loss)
        engine.step()
    print("equal before and after an update")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
