"""Checks of one node, run there: versions, GPUs, shared memory, storage. Imports nothing heavy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from meds_openrlhf.doctor.finding import Finding
from meds_openrlhf.files import SLOW_FSYNC_SECONDS, fsync_seconds
from meds_openrlhf.locks import NoLocksError, try_lock
from meds_openrlhf.placement.gpu_driver import ask_driver, old_driver, too_old

GB = 2**30
LEAST_SHARED_MEMORY = 8 * GB  # NCCL's buffers, and Ray's store, which otherwise writes to the disk
LEAST_DISK = 20 * GB
OTHERS_GB = 2.0  # on a GPU, by processes that are not the run's

_PIN = re.compile(r"([\w.-]+)(?:\[[\w,]+\])?==([\w.]+)(?:; extra == \"(?:vllm|gpu)\")?")


@dataclass(frozen=True)
class NodeReport:
    """What a node says of itself. ``versions`` are of what must be the same everywhere; ``clock`` is its time."""

    findings: list[Finding]
    versions: dict[str, str]
    clock: float


def examine(node: str, folder: Path, token: str, has_gpus: bool) -> NodeReport:
    """Run all checks. ``folder`` holds the file ``token``, which the process that asks has locked."""
    checks = [
        *_versions(node, has_gpus),
        *(_gpus(node) if has_gpus else _unseen_gpus(node)),
        _shared_memory(node, shutil.disk_usage("/dev/shm").total),
        *_storage(node, folder, token),
    ]
    return NodeReport(checks, installed(), time.time())


def installed() -> dict[str, str]:
    """Return the versions of Python and of the packages that the stack pins; those that are missing are left out."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in ["meds-openrlhf", "torch", "nvidia-nccl-cu13", *_pins()]:
        for name in (package, f"{package}-cpu"):  # vLLM's build for CPUs has a name of its own
            with suppress(PackageNotFoundError):
                found[package] = version(name)
    return found


def _pins() -> dict[str, str]:
    """Return the exact versions that this package and OpenRLHF ask for."""
    found: dict[str, str] = {}
    for package in ("meds-openrlhf", "openrlhf"):
        with suppress(PackageNotFoundError):
            found |= {match[1]: match[2] for match in map(_PIN.fullmatch, requires(package) or []) if match}
    return found


def _versions(node: str, has_gpus: bool) -> Iterator[Finding]:
    have, wanted = installed(), _pins()
    if not has_gpus:
        wanted.pop("flash-attn", None)  # it cannot be built without CUDA
    wrong = [
        f"{name} {have.get(name, 'is missing')} (wanted: {pin})"
        for name, pin in wanted.items()
        if have.get(name, "").partition("+")[0] != pin
    ]
    if wrong:
        advice = "they do not work together: install them anew, in a clone with `make setup-gpu` (no GPU: `make setup`)"
        yield Finding(node, "versions", ", ".join(wrong), advice)
    else:
        yield Finding(node, "versions", ", ".join(f"{name} {have[name]}" for name in wanted))


def _gpus(node: str) -> Iterator[Finding]:
    try:
        cards = ask_driver("name,driver_version,memory.total,memory.used", seconds=60)
    except (OSError, subprocess.SubprocessError) as error:
        advice = "Ray has GPUs here, but their driver does not answer: run nvidia-smi there, or restart the node"
        yield Finding(node, "GPUs", f"nvidia-smi: {error}", advice)
        return
    used = [float(card[3]) / 1024 for card in cards]
    occupied = [f"GPU {number}: {gb:.0f} GB" for number, gb in enumerate(used) if gb > OTHERS_GB]
    kinds = ", ".join(dict.fromkeys(f"{card[0]} of {float(card[2]) / 1024:.0f} GB, driver {card[1]}" for card in cards))
    advice = "other processes hold memory there, and vLLM will not start: end them (nvidia-smi shows them)"
    old = next(filter(None, (too_old(card[1]) for card in cards)), None)
    found = ", ".join([f"{len(cards)} x {kinds}", *occupied])
    yield Finding(node, "GPUs", found, old or (advice if occupied else ""))


def _unseen_gpus(node: str) -> Iterator[Finding]:
    """GPUs that torch does not see because of their driver; without any, there is nothing to say."""
    if old := old_driver():
        yield Finding(node, "GPUs", "none that torch can use", old)


def _shared_memory(node: str, total: int) -> Finding:
    found = f"/dev/shm of {total / GB:.1f} GB"
    if total >= LEAST_SHARED_MEMORY:
        return Finding(node, "memory", found)
    advice = (
        f"below {LEAST_SHARED_MEMORY // GB} GB, Ray's store goes to the disk and NCCL may fail: give the container "
        "more (--shm-size, on Kubernetes an emptyDir of medium Memory at /dev/shm)"
    )
    return Finding(node, "memory", found, advice)


def _storage(node: str, folder: Path, token: str) -> Iterator[Finding]:
    shared = folder / token
    if not os.path.exists(shared):  # Path.exists raises where the folder may not be read
        advice = "it is another folder there: name one with --folder that all nodes share (meds.run_dir goes there)"
        yield Finding(node, "storage", f"{folder} does not show what another node wrote", advice)
        return
    written, renamed = (folder / f"{token}-{node}-{name}" for name in ("written", "renamed"))
    try:
        written.write_bytes(b"x")
        written.replace(renamed)
        renamed.unlink()
        seconds = fsync_seconds(folder)
    except OSError as error:
        advice = "a run writes there from every node: make it writable, or name another with --folder"
        yield Finding(node, "storage", f"{folder}: {error.strerror or error}", advice)
        return
    free = shutil.disk_usage(folder).free
    found = f"{folder}: a durable write takes {1000 * seconds:.0f} ms, {free / GB:.0f} GB free"
    if free < LEAST_DISK:
        yield Finding(node, "storage", found, "a checkpoint of a 7B policy takes about 110 GB: make room")
    elif seconds >= SLOW_FSYNC_SECONDS:
        advice = "every step waits for one: use faster storage"
        yield Finding(node, "storage", found, advice, slow=True)
    else:
        yield Finding(node, "storage", found)
    yield _locks(node, shared)


def _locks(node: str, shared: Path) -> Finding:
    try:
        with shared.open("rb+") as file:
            is_free = try_lock(file.fileno())
    except NoLocksError as error:
        advice = "mount it with them (Lustre: -o flock), or set meds.lock_seconds: null, one run a folder"
        return Finding(node, "locks", str(error.strerror), advice)
    except OSError as error:
        advice = "files of one node have to be writable on the others: the same user everywhere, no root squash"
        return Finding(node, "locks", f"another node's file: {error.strerror}", advice)
    if is_free:
        advice = (
            "nothing keeps two runs out of one folder: mount it with locks that are shared (Lustre: -o flock, not "
            "localflock; NFS: not nolock or local_lock)"
        )
        return Finding(node, "locks", "another node's lock is not seen here", advice)
    return Finding(node, "locks", "another process's lock is seen")
