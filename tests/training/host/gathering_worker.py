"""One of two ranks that change a ZeRO-3 parameter and read it back: prints how often it was not whole."""

import os

import deepspeed
import torch

CHANGES = 150


def main(rank: int, ranks: int, port: str) -> None:
    addresses = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), **addresses)
    deepspeed.init_distributed("gloo")
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    with deepspeed.zero.Init(config_dict_or_path=config):
        layer = torch.nn.Linear(96, 96)
    parameters = [layer.weight, layer.bias]
    torch.manual_seed(0)
    broken = 0
    for _ in range(CHANGES):
        expected = torch.randn(96, 96)
        with deepspeed.zero.GatheredParameters(parameters, modifier_rank=0):
            if rank == 0:
                layer.weight.data.copy_(expected)
        with deepspeed.zero.GatheredParameters(parameters):
            broken += not torch.equal(layer.weight.data, expected)
    print(f"broken {broken}")
