"""What a tracking server that never answers costs a run: whole training runs, with W&B hanging and without, in turns.

Each run trains the demo's policy for some steps on the real stack; the time is that between the first and the last
line of its `metrics.jsonl`. From the repository's root, after `make demo` or `meds data arithmetic assets/arithmetic`:

    python -m benchmarks.tracking --rounds 2
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.step_log import StepLog

CONFIG = Path("configs/cpu/meds.yaml")
POLL_SECONDS = 0.05


@contextmanager
def hanging_server() -> Iterator[str]:
    """The URL of a server that takes connections and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def seconds_of_steps(folder: Path, steps: int, environment: dict[str, str]) -> tuple[float, str]:
    """How long ``steps`` steps after the first took, and what the run said."""
    log = StepLog(RunPaths(folder).metrics)
    command = [sys.executable, "-m", "meds_openrlhf.cli.main", "train", str(CONFIG), f"--meds.run_dir={folder}"]
    command += ["--train.num_episodes=2", "--algo.dynamic_filtering_enable=false"]
    command += [f"--data.max_samples={8 * (steps // 2 + 1)}"]  # 8 prompts a step
    run = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    seen: dict[int, float] = {}
    while run.poll() is None:
        seen.setdefault(len(log.read()), time.perf_counter())
        time.sleep(POLL_SECONDS)
    assert run.stdout is not None
    said = run.stdout.read()
    if run.returncode != 0:
        raise RuntimeError(f"the run ended with {run.returncode}:\n{said[-3000:]}")
    return seen[steps + 1] - seen[1], said


def main() -> None:
    """Take turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="runs of each kind (%(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="steps that are timed, after the first (%(default)s)")
    arguments = parser.parse_args()
    times: dict[str, list[float]] = {"without": [], "hanging": []}
    with hanging_server() as url, tempfile.TemporaryDirectory() as scratch:
        kinds = {
            "without": {"WANDB_MODE": "disabled"},
            "hanging": {"WANDB_BASE_URL": url, "WANDB_API_KEY": "0" * 40, "WANDB_MODE": "online"},
        }
        for number in range(arguments.rounds):
            for kind, environment in kinds.items():
                took, said = seconds_of_steps(Path(scratch) / f"{kind}-{number}", arguments.steps, environment)
                times[kind].append(took)
                print(f"{kind:8} {took:7.2f} s; said of W&B: {said.count('W&B')} times", flush=True)
    without, hanging = median(times["without"]), median(times["hanging"])
    print(f"{arguments.steps} steps: {without:.2f} s without, {hanging:.2f} s with a server that hangs, ", end="")
    print(f"ratio {hanging / without:.3f}")


if __name__ == "__main__":
    main()
