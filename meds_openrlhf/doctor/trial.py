"""Trainings of a tiny policy: every part of the stack starts, and engines have the policy's weights after a sync."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from meds_openrlhf.config import RunConfig
from meds_openrlhf.doctor.checks import Finding
from meds_openrlhf.runtime.devices import cpu_environment
from meds_openrlhf.step_log import LARGEST_VLLM_KL
from meds_openrlhf.tracking.trackers import NOWHERE

# Of a recipe: its parallelism, LoRA, batches by tokens, correction and engines; but not what follows from its size.
PARTS = ("ds.", "vllm.", "algo.advantage.is_correction_", "train.dynamic_batch_enable", "actor.gradient_checkpointing")
OF_SIZE = ("vllm.num_engines", "vllm.gpu_memory_utilization")
PROMPTS_OF_A_RANK, RESPONSES, MOST_RANKS = 4, 4, 8  # and ranks of a node


def trials(
    folder: Path, gpus: Mapping[str, int], made_up: bool, verbose: bool, recipe: RunConfig | None = None
) -> Iterator[Finding]:
    """Train with a rank and an engine on each node, and with two GPUs or more also as recipes do, on shared GPUs.

    With a ``recipe``, the second training has its own parallelism, LoRA and importance correction.
    """
    os.environ.update(cpu_environment() if made_up else {})
    least, nodes = min(gpus.values()), len(gpus)
    flags = {"meds.allow_cpu": made_up, "meds.placement.mode": "split" if least >= 2 else "colocate"}
    yield train_tiny_policy(folder, "training", nodes, 1, counts(nodes, 1) | flags, verbose)
    ranks = min(MOST_RANKS, 2 ** (least.bit_length() - 1))
    if recipe is not None:
        own = flags_of_parts(recipe) | {"meds.allow_cpu": made_up}
        yield train_tiny_policy(folder, "recipe", nodes, ranks, own, verbose)
    elif least >= 2:
        shared = counts(nodes, ranks) | {"meds.allow_cpu": made_up}
        yield train_tiny_policy(folder, "sharing", nodes, ranks, shared, verbose)


def counts(nodes: int, ranks: int) -> dict[str, int]:
    """Return the flags for ``ranks`` and engines of one GPU on each node."""
    numbers = {"actor.num_nodes": nodes, "actor.num_gpus_per_node": ranks, "vllm.num_engines": nodes * ranks}
    return {**numbers, "vllm.tensor_parallel_size": 1}


def flags_of_parts(recipe: RunConfig) -> dict[str, Any]:
    """Return the settings of a recipe that say how its parts work together; counts follow from the cluster.

    Synchronously: an asynchronous run's engines have other weights than its policy.
    """
    flags, mode = recipe.openrlhf, recipe.meds.placement.mode
    if mode == "flags":
        mode = "colocate" if flags.get("train.colocate_all") else "split"
    if flags.get("train.async_enable"):
        mode = "split"
    chosen = {key: value for key, value in flags.items() if key.startswith(PARTS) and key not in OF_SIZE}
    return {"meds.placement.mode": mode, **chosen}


def train_tiny_policy(folder: Path, check: str, nodes: int, ranks: int, flags: dict, verbose: bool) -> Finding:
    """Train two steps on ``ranks`` of each node, and compare the log-probs of engines and policy."""
    from meds_openrlhf.arithmetic.warm_start import WarmStartRecipe, prepare
    from meds_openrlhf.paths import RunPaths
    from meds_openrlhf.step_log import StepLog

    here, prompts = Path(__file__).parent, PROMPTS_OF_A_RANK * nodes * ranks
    widths = [int(flags.get(f"{part}.tensor_parallel_size") or 1) for part in ("ds", "vllm")]
    heads = max(2, *widths)  # at least one for each GPU
    policy = {"layers": 2, "hidden_size": 64 * heads, "heads": heads}
    recipe = WarmStartRecipe(**policy, steps=1, train_problems=2 * prompts, eval_problems=1)
    with TemporaryDirectory(prefix=".meds-doctor-", dir=folder, ignore_cleanup_errors=True) as scratch:
        paths, assets = RunPaths(Path(scratch, "run")), prepare(Path(scratch, "task"), recipe=recipe)
        batches = {"rollout.batch_size": prompts, "rollout.n_samples_per_prompt": RESPONSES}
        batches |= {"train.batch_size": prompts * RESPONSES}
        files = {"actor.model_name_or_path": assets.policy, "data.prompt_dataset": assets.train}
        files |= {"reward.remote_url": here / "reward.py", "meds.run_dir": paths.root}
        words = [f"--{key}={json.dumps(value, default=str)}" for key, value in {**batches, **files, **flags}.items()]
        command = [sys.executable, "-m", "meds_openrlhf.cli.main", "train", str(here / "trial.yaml"), *words]
        command += [f"--variant={here / 'modes.yaml'}:{check}", *(["--verbose"] if verbose else [])]
        done = subprocess.run(command, env={**os.environ, **NOWHERE}, capture_output=not verbose, text=True)
        if done.returncode:
            lines = [f"exit code {done.returncode}", *(done.stderr or "").strip().splitlines()]
            return Finding("cluster", check, lines[-1].removeprefix("meds: "), "a run would fail too: see --verbose")
        return judge(check, StepLog(paths.metrics).read())


def judge(check: str, steps: list[dict[str, Any]]) -> Finding:
    """Judge the metrics of the two steps; the responses of the second come from synchronized weights."""
    first, second = (abs(step["vllm_kl"]) for step in steps)
    found = f"a tiny policy trained; engines and policy differ by {first:.4f} and, after a sync, {second:.4f} nats"
    advice = ""
    if first > LARGEST_VLLM_KL:
        advice = "they compute other log-probs from the same weights: check the versions, and vllm's and ds's dtypes"
    elif second > LARGEST_VLLM_KL:
        advice = (
            "the engines did not get the policy's new weights: compare vLLM's and NCCL's versions with requirements/"
        )
    elif not any(step.get("meds/rows") for step in steps):
        advice = "the memory got no rows: the recorder does not see the policy's layers"
    return Finding("cluster", check, found, advice)
