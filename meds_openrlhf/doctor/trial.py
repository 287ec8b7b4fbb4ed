"""Trainings of a tiny policy: every part of the stack starts, and engines have the policy's weights after a sync.

The first is as simple as it can be: what breaks it is broken everywhere. The second, on nodes with two GPUs or more, is
like the recipes: policy and engines share GPUs and pass weights by CUDA handles; several ranks, ZeRO-3, packed batches.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from meds_openrlhf.doctor.checks import Finding
from meds_openrlhf.placement.ray_cluster import accelerators, named_nodes
from meds_openrlhf.tracking.trackers import NOWHERE

# Nats a token between engine and policy: bf16 and other kernels make some 0.001, weights of one step ago over 0.1.
LARGEST_KL = 0.02
PROMPTS, RESPONSES = 4, 4  # prompts of a rank, responses of a prompt
MADE_UP_RANKS, MOST_RANKS = 2, 8  # of a node


@dataclass(frozen=True)
class GpuNodes:
    """How many nodes have GPUs, and how many the smallest of them has; ``made_up`` on a cluster without real ones."""

    count: int
    gpus: int
    made_up: bool

    def ranks(self, gpus: int) -> int:
        """The ranks that a check starts on a node with so many ``gpus``."""
        return min(gpus, MADE_UP_RANKS) if self.made_up else gpus


def gpu_nodes() -> GpuNodes:
    """Return the nodes with GPUs of the cluster that this process is connected to."""
    found = [node for node in named_nodes().values() if node["Resources"].get("GPU", 0) >= 1]
    gpus = min((int(node["Resources"]["GPU"]) for node in found), default=0)
    return GpuNodes(len(found), gpus, made_up=not any(map(accelerators, found)))


@dataclass(frozen=True)
class Mode:
    """How a trial uses GPUs: its ranks and engines on each node, where they are placed, and OpenRLHF's flags."""

    check: str
    policy: str  # in words
    placement: str
    ranks: int
    flags: dict[str, Any]


def modes_of(nodes: GpuNodes) -> list[Mode]:
    """Return the modes to try. In the first, each node has a rank and an engine, on different GPUs if there are two."""
    simple = Mode("training", "", "split" if nodes.gpus >= 2 else "colocate", 1, {"vllm.enforce_eager": True})
    if nodes.gpus < 2:
        return [simple]
    ranks = min(MOST_RANKS, 2 ** (nodes.ranks(nodes.gpus).bit_length() - 1))
    flags = {"ds.zero_stage": 3, "ds.packing_samples": True, "train.dynamic_batch_enable": True}
    flags |= {"train.max_tokens_per_gpu": 512, "rollout.max_tokens_per_gpu": 512}
    shared = f" as recipes do, {ranks} GPUs of a node shared by policy and engines"
    return [simple, Mode("sharing", shared, "colocate", ranks, flags)]


def train_tiny_policy(folder: Path, nodes: GpuNodes, mode: Mode, verbose: bool) -> Finding:
    """Train two steps with `meds train` and compare the log-probs of engines and policy."""
    from meds_openrlhf.arithmetic.warm_start import WarmStartRecipe, prepare
    from meds_openrlhf.paths import RunPaths
    from meds_openrlhf.tracking.step_log import StepLog

    scratch = (folder / f".meds-doctor-{secrets.token_hex(4)}").absolute()
    problems = 2 * PROMPTS * nodes.count * mode.ranks
    recipe = WarmStartRecipe(layers=2, hidden_size=128, heads=2, steps=1, train_problems=problems, eval_problems=1)
    try:
        prepare(scratch / "task", recipe=recipe)
        (scratch / "run.yaml").write_text(yaml.safe_dump(_settings(scratch, nodes, mode)))
        command = [sys.executable, "-m", "meds_openrlhf.cli.main", "train", str(scratch / "run.yaml")]
        if verbose:
            finished = subprocess.run([*command, "--verbose"], env={**os.environ, **NOWHERE}, text=True)
        else:
            finished = subprocess.run(command, env={**os.environ, **NOWHERE}, text=True, capture_output=True)
        if finished.returncode:
            found = ((finished.stderr or "").strip() or f"exit code {finished.returncode}").splitlines()[-1]
            advice = "a run would end like this; `meds doctor --verbose` shows what the workers print"
            return Finding("cluster", mode.check, found.removeprefix("meds: "), advice)
        return judge(StepLog(RunPaths(scratch / "run").metrics).read(), mode)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def judge(steps: list[dict[str, Any]], mode: Mode) -> Finding:
    """Judge the metrics of the two steps; the responses of the second come from synchronized weights."""
    first, second = (abs(step["vllm_kl"]) for step in steps)
    differ = f"engines and policy differ by {first:.4f} and, after a sync, {second:.4f} nats"
    if first > LARGEST_KL:
        advice = "they compute other log-probs from the same weights: check the versions, and vllm's and ds's dtypes"
    elif second > LARGEST_KL:
        advice = "the engines did not get the policy's new weights: try vllm.sync_backend gloo, and check NCCL"
    elif not any(step.get("meds/rows") for step in steps):
        advice = "the memory got no rows: the recorder does not see the policy's layers"
    else:
        advice = ""
    return Finding("cluster", mode.check, f"a tiny policy trained{mode.policy}; {differ}", advice)


def _settings(scratch: Path, nodes: GpuNodes, mode: Mode) -> dict[str, Any]:
    prompts = PROMPTS * nodes.count * mode.ranks
    return {
        "meds.run_dir": str(scratch / "run"),
        "meds.allow_cpu": nodes.made_up,
        "meds.features.answer_pattern": r"\A\s*(\S)",
        "meds.placement.mode": mode.placement,
        "actor.model_name_or_path": str(scratch / "task" / "policy"),
        "actor.adam.lr": 0.01,
        "actor.num_nodes": nodes.count,
        "actor.num_gpus_per_node": mode.ranks,
        "vllm.num_engines": nodes.count * mode.ranks,
        "vllm.tensor_parallel_size": 1,
        "vllm.gpu_memory_utilization": 0.3,
        "data.prompt_dataset": str(scratch / "task" / "train.jsonl"),
        "data.input_key": "prompt",
        "data.label_key": "answer",
        "data.max_len": 160,
        "rollout.max_new_tokens": 24,
        "rollout.batch_size": prompts,
        "rollout.n_samples_per_prompt": RESPONSES,
        "rollout.micro_batch_size": 4,
        "train.batch_size": prompts * RESPONSES,
        "train.micro_batch_size": 4,
        "train.num_episodes": 1,
        "algo.advantage.estimator": "group_norm",
        "algo.advantage.is_correction_level": "token",
        "algo.kl.init_coef": 0,
        "reward.remote_url": str(Path(__file__).with_name("reward.py")),
        **mode.flags,
    }
