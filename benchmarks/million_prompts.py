"""What a large training set costs at start: seconds, bytes that are sent to the trainer, and the peak of memory.

python -m benchmarks.million_prompts --prompts 1000000
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.training import cpu

if not cpu.has_cuda():
    cpu.install()  # before anything of OpenRLHF's

from openrlhf.datasets import PromptDataset

from meds_openrlhf.training.preparation import prompts

TEXT = "<|im_start|>user\nProblem {}: " + 8 * "Let x be a number such that " + "<|im_end|>\n<|im_start|>assistant\n"


def main() -> None:
    """Print a line per phase."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=1_000_000)
    count = parser.parse_args().prompts
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.jsonl"
        with path.open("w") as file:
            for number in range(count):
                row = {"id": f"problem-{number}", "prompt": TEXT.format(number), "answer": str(number)}
                file.write(json.dumps(row) + "\n")
        args = _arguments(path, count)
        data = _timed("load the data set", lambda: prompts.load_prompts(args, "id"))
        ids = _timed("ids of all prompts", lambda: prompts.prompt_ids(data, args, SimpleNamespace(), "id"))
        print(f"{'sent to the trainer':30} {len(pickle.dumps(ids)) / 1e6:6.1f} MB")
        strategy = SimpleNamespace(args=args, is_rank_0=lambda: False)
        _timed("OpenRLHF's PromptDataset", lambda: PromptDataset(data, None, strategy))


def _arguments(path: Path, count: int) -> SimpleNamespace:
    data = SimpleNamespace(
        prompt_dataset=str(path), prompt_split="train", prompt_probs=None, input_key="prompt", label_key="answer",
        max_samples=count, apply_chat_template=False, input_template=None,
    )  # fmt: skip
    return SimpleNamespace(data=data, eval=SimpleNamespace(dataset=None), train=SimpleNamespace(seed=1))


def _timed(name: str, phase: Callable[[], Any]) -> Any:
    started = time.perf_counter()
    result = phase()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{name:30} {time.perf_counter() - started:6.1f} s, peak of this process so far {peak:.2f} GB", flush=True)
    return result


if __name__ == "__main__":
    main()
