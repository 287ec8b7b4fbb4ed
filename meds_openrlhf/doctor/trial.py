"""Trainings of a tiny policy: every part of the stack starts, and engines have the policy's weights after a sync.

The first is as simple as it can be, so that what breaks it is broken everywhere. The second, on nodes with two GPUs or
more, is as recipes are: policy and engines share GPUs, so that one sleeps while the other works and weights pass by
CUDA's handles between processes; several ranks of a node; ZeRO-3; packed batches by tokens; CUDA graphs.
"""

from __future__ import annotations

import io
import os
import secrets
import shutil
import traceback
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meds_openrlhf.config import ConfigError, MedsSettings, PlacementSettings, RunConfig
from meds_openrlhf.config.schema import FeatureSettings
from meds_openrlhf.doctor.cluster import GpuNodes
from meds_openrlhf.doctor.finding import Finding
from meds_openrlhf.tracking.trackers import NOWHERE
from meds_openrlhf.training.host import cpu

# Nats a token between engine and policy: bf16 and other kernels make some 0.001, weights of one step ago over 0.1.
LARGEST_KL = 0.02
PROMPTS_OF_A_RANK, RESPONSES = 4, 4
MADE_UP_RANKS = 2  # of a node without GPUs
MOST_RANKS = 8  # of a node
REWARD = Path(__file__).with_name("reward.py")


@dataclass(frozen=True)
class Mode:
    """How a trial uses GPUs: its ranks and engines on each node, where they sit, and OpenRLHF's flags."""

    check: str
    policy: str  # in words
    placement: str
    ranks: int
    flags: Mapping[str, Any]


def modes_of(nodes: GpuNodes) -> list[Mode]:
    """Return the modes to try, the simplest first.

    In that one each node has a rank of the policy and an engine, each on a GPU of its own if there are two: weights and
    gradients cross the network as in a run.
    """
    alone = Mode("training", "", "split" if nodes.gpus >= 2 else "colocate", 1, {"vllm.enforce_eager": True})
    if nodes.gpus < 2:
        return [alone]
    ranks = MADE_UP_RANKS if nodes.made_up else min(MOST_RANKS, 2 ** (nodes.gpus.bit_length() - 1))
    flags = {"ds.zero_stage": 3, "ds.packing_samples": True, "train.dynamic_batch_enable": True}
    flags |= {"train.max_tokens_per_gpu": 512, "rollout.max_tokens_per_gpu": 512}
    shared = f" as recipes do, {ranks} GPUs of a node shared by policy and engines"
    return [alone, Mode("sharing", shared, "colocate", ranks, flags)]


def train_tiny_policy(folder: Path, nodes: GpuNodes, mode: Mode, verbose: bool) -> Finding:
    """Train two steps and compare the log-probs of engines and policy."""
    if nodes.made_up:
        cpu.install()
    from meds_openrlhf.arithmetic.warm_start import WarmStartRecipe, prepare
    from meds_openrlhf.paths import RunPaths
    from meds_openrlhf.tracking.step_log import StepLog
    from meds_openrlhf.training.run import run_training

    before = {name: os.environ[name] for name in NOWHERE if name in os.environ}
    os.environ.update(NOWHERE)  # this is no run that anybody wants to see there
    scratch = (folder / f".meds-doctor-{secrets.token_hex(4)}").absolute()
    problems = 2 * PROMPTS_OF_A_RANK * nodes.count * mode.ranks
    recipe = WarmStartRecipe(layers=2, hidden_size=128, heads=2, steps=1, train_problems=problems, eval_problems=1)
    try:
        prepare(scratch / "task", recipe=recipe)
        config = _configuration(scratch, nodes, mode)
        with nullcontext() if verbose else redirect_stdout(io.StringIO()):  # OpenRLHF's remarks on flags
            run_training(config, resume=False, verbose=verbose, listener=_Silent())
        return judge(StepLog(RunPaths(scratch / "run").metrics).read(), mode)
    except ConfigError as error:
        return Finding("cluster", mode.check, str(error), f"the training of a tiny policy{mode.policy} was refused")
    except Exception as error:  # whatever breaks here would break a run
        lines = str(error).strip().splitlines() or traceback.format_exception_only(error)
        advice = "a run would end like this; `meds doctor --verbose` shows what the workers print"
        return Finding("cluster", mode.check, lines[-1], advice)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        for name in NOWHERE:
            del os.environ[name]
        os.environ.update(before)


def judge(steps: list[dict[str, Any]], mode: Mode) -> Finding:
    """Judge the metrics of the two steps; the second's responses are of weights that were synchronised."""
    first, second = (abs(step["vllm_kl"]) for step in steps)
    differ = f"engines and policy differ by {first:.4f} and, after a sync, {second:.4f} nats"
    found = f"a tiny policy trained{mode.policy}; {differ}"
    if first > LARGEST_KL:
        advice = "they compute other log-probs from the same weights: check the versions, and vllm's and ds's dtypes"
    elif second > LARGEST_KL:
        advice = "the engines did not get the policy's new weights: try vllm.sync_backend gloo, and check NCCL"
    elif not any(step.get("meds/rows") for step in steps):
        advice = "the memory got no rows: the recorder does not see the policy's layers"
    else:
        advice = ""
    return Finding("cluster", mode.check, found, advice)


def _configuration(scratch: Path, nodes: GpuNodes, mode: Mode) -> RunConfig:
    prompts = PROMPTS_OF_A_RANK * nodes.count * mode.ranks
    flags = {
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
        "reward.remote_url": str(REWARD),
        **mode.flags,
    }
    meds = MedsSettings(
        run_dir=str(scratch / "run"),
        allow_cpu=nodes.made_up,
        features=FeatureSettings(answer_pattern=r"\A\s*(\S)"),
        placement=PlacementSettings(mode=mode.placement),
    )
    return RunConfig(meds, flags)


class _Silent:
    """A run's listener that prints nothing."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_kwargs: None
