"""A rank alone that records, trains and records again under ZeRO-3; prints the largest difference to the long way.

python -m tests.gpu.zero3_worker DEVICE PORT
"""

import os
import sys


def main(device: str, port: str) -> None:
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    os.environ["DS_ACCELERATOR"] = device
    from meds_openrlhf.training.host import cpu

    if device == "cpu":
        cpu.install()  # as in a run: nothing is compiled
    import deepspeed
    import torch

    from meds_openrlhf.features.layout import padded_positions
    from tests.features.models import make_model, the_long_way
    from tests.features.test_recorder import HAVE, WIDTH, padded_batch, record

    deepspeed.init_distributed("nccl" if device == "cuda" else "gloo")
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": device == "cpu"}},
    }
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
    torch.distributed.destroy_process_group()
    print("equal before and after an update")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
