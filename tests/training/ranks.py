"""A group of processes, each a rank that runs ``main`` of a module of the tests, and the tiny policy that they train.

python -m tests.training.ranks MODULE RANK RANKS PORT WORDS
"""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile

import torch

from meds_openrlhf.training.openrlhf import cpu
from tests.processes import free_ports


def run_ranks(module: str, ranks: int, *words: object) -> list[str]:
    """Run ``main(rank, ranks, port, *words)`` of the module in every rank; return what each has printed."""
    port = free_ports(1)[0]
    outputs = [TemporaryFile("w+") for _ in range(ranks)]  # noqa: SIM115
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, module, *map(str, (rank, ranks, port, *words))],
            cwd=Path(__file__).parents[2], stdout=output, stderr=subprocess.STDOUT,
        )
        for rank, output in enumerate(outputs)
    ]  # fmt: skip
    try:
        codes = [worker.wait(300) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    printed = []
    for output in outputs:
        output.seek(0)
        printed.append(output.read())
    assert codes == [0] * ranks, printed[0][-5000:]
    return printed


def save_tiny_policy(folder: Path, dtype: torch.dtype, tied: bool = False) -> None:
    from transformers import AutoModelForCausalLM, Qwen2Config

    from meds_openrlhf.arithmetic.tiny_policy import build_char_tokenizer

    config = Qwen2Config(
        vocab_size=261, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, tie_word_embeddings=tied,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
    build_char_tokenizer().save_pretrained(folder)


def main(module: str, rank: str, ranks: str, port: str, *words: str) -> None:
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=ranks, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    cpu.install()
    torch.set_num_threads(1)
    importlib.import_module(module).main(int(rank), int(ranks), port, *words)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
