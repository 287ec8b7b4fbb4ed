"""The checks of every node, and what only a comparison shows: other versions, clocks that differ."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meds_openrlhf.config import ConfigError
from meds_openrlhf.doctor.finding import Finding
from meds_openrlhf.doctor.node import GB, NodeReport, examine, installed
from meds_openrlhf.files import write_atomically
from meds_openrlhf.locks import try_lock

ANSWER_SECONDS = 180.0
CLOCK_SECONDS = 5.0
LEAST_STORE = 4 * GB
ONLY_WITH_GPUS = {"flash-attn", "nvidia-nccl-cu13"}


def examine_this_machine(folder: Path, has_gpus: bool) -> Iterator[Finding]:
    """Check this machine, without Ray."""
    with _token_in(folder) as token:
        yield from examine("this machine", folder, token, has_gpus).findings


def examine_nodes(folder: Path) -> Iterator[Finding]:
    """Check every node of the Ray cluster that this process is connected to, all at once."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from meds_openrlhf.placement.ray_cluster import accelerators, named_nodes

    nodes, here = named_nodes(), installed()
    ask = ray.remote(num_cpus=0, max_retries=0)(examine)
    with _token_in(folder) as token:
        asked = {}
        for name, node in nodes.items():
            there = ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
            asked[there.remote(name, folder, token, bool(accelerators(node)))] = name
        deadline = time.monotonic() + ANSWER_SECONDS
        waiting = list(asked)
        while waiting:
            answered, waiting = ray.wait(waiting, timeout=max(deadline - time.monotonic(), 0.0))
            if not answered:
                break
            yield from _answer(asked[answered[0]], answered[0], here)
        for late in waiting:
            advice = "its raylet starts no worker: see its log (/tmp/ray/session_latest/logs), or restart the node"
            yield Finding(asked[late], "node", f"no answer within {ANSWER_SECONDS:.0f} s", advice)
    for name, node in nodes.items():
        yield _object_store(name, node["Resources"].get("object_store_memory", 0.0))


@dataclass(frozen=True)
class GpuNodes:
    """How many nodes have GPUs, and how many the smallest of them has; ``made_up`` on a cluster without real ones."""

    count: int
    gpus: int
    made_up: bool


def gpu_nodes() -> GpuNodes:
    """Return the nodes with GPUs of the cluster that this process is connected to."""
    from meds_openrlhf.placement.ray_cluster import accelerators, named_nodes

    found = [node for node in named_nodes().values() if node["Resources"].get("GPU", 0) >= 1]
    gpus = min((int(node["Resources"]["GPU"]) for node in found), default=0)
    return GpuNodes(len(found), gpus, made_up=not any(map(accelerators, found)))


def _answer(node: str, answer: Any, here: dict[str, str]) -> Iterator[Finding]:
    import ray

    arrived = time.time()

    try:
        report: NodeReport = ray.get(answer)
    except ray.exceptions.RayError as error:
        last_line = str(error).strip().splitlines()[-1]
        yield Finding(node, "node", last_line, "install this version of meds-openrlhf there, as on the other nodes")
        return
    yield from report.findings
    yield from differences(node, report, here, arrived)


def differences(node: str, report: NodeReport, here: dict[str, str], arrived: float) -> Iterator[Finding]:
    """Compare a node's report, which arrived at the time ``arrived``, with the versions ``here``."""
    names = sorted((report.versions.keys() | here.keys()) - ONLY_WITH_GPUS | (report.versions.keys() & here.keys()))
    pairs = [(name, report.versions.get(name, "missing"), here.get(name, "missing")) for name in names]
    # What follows a plus is the build, which differs where a node has no GPU.
    other = [
        f"{name} {there} (here: {here})" for name, there, here in pairs if there.split("+")[0] != here.split("+")[0]
    ]
    if other:
        yield Finding(node, "versions", ", ".join(other), "processes of a run exchange objects: install one version")
    apart = report.clock - arrived
    if abs(apart) > CLOCK_SECONDS:
        advice = "logs and checkpoints will seem out of order: synchronise the clocks (NTP, chrony)"
        yield Finding(node, "clock", f"{apart:+.0f} s from this one's", advice, slow=True)


def _object_store(node: str, size: float) -> Finding:
    found = f"object store of {size / GB:.1f} GB"
    if size >= LEAST_STORE:
        return Finding(node, "store", found)
    advice = "a step's rollouts may not fit and go to the disk: ray start --object-store-memory, and see /dev/shm"
    return Finding(node, "store", found, advice, slow=True)


@contextmanager
def _token_in(folder: Path) -> Iterator[str]:
    """Write and lock a file in the folder, by which the nodes know it; yields its name."""
    token = f".meds-doctor-{secrets.token_hex(4)}"
    try:
        write_atomically(folder / token, "meds doctor")
        with (folder / token).open("rb+") as file:
            try_lock(file.fileno(), optional=True)  # without locks, every node says so
            yield token
    except OSError as error:
        raise ConfigError("--folder", str(folder), f"cannot be written to ({error.strerror or error})") from error
    finally:
        with suppress(OSError):
            (folder / token).unlink()
