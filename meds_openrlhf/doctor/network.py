"""How fast GPUs exchange gradients, within a node and between nodes: an all-reduce of 1 GB, timed.

NCCL takes the fastest transport that it finds, and plain TCP if it finds none, without a word.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from meds_openrlhf.doctor.finding import Finding
from meds_openrlhf.placement.ray_cluster import named_nodes

SIZE, MADE_UP_SIZE = 10**9, 10**7  # bytes
ROUNDS = 5
SECONDS = 180.0  # for all ranks to start, find each other and exchange
MADE_UP_RANKS = 2  # of a node without GPUs
SLOW_BETWEEN_NODES = 25.0  # GB/s, of all links of a node together: at this, a 7B policy on 4 nodes waits as it computes
TCP = "NET/Socket"


def all_reduces(made_up: bool) -> Iterator[Finding]:
    """Time an all-reduce among the GPUs of each node, and among all GPUs, of the cluster that this process is in."""
    rank = ray.remote(num_gpus=1, num_cpus=0)(Rank)
    groups: dict[str, list[Any]] = {}
    for name, node in named_nodes().items():
        gpus = int(node["Resources"].get("GPU", 0))
        here = rank.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
        if started := [here.remote() for _ in range(min(gpus, MADE_UP_RANKS) if made_up else gpus)]:
            groups[name] = started
    everyone = [process for ranks in groups.values() for process in ranks]
    sound = True
    try:
        for name, ranks in groups.items():
            if len(ranks) > 1:
                finding = _timed(name, f"{len(ranks)} GPUs", ranks, made_up)
                sound = sound and finding.word != "WRONG"
                yield finding
        if len(groups) > 1 and sound:  # ranks that failed take part in nothing more
            yield _timed("cluster", f"{len(everyone)} GPUs of {len(groups)} nodes", everyone, made_up)
    finally:
        for process in everyone:
            ray.kill(process)


def _timed(node: str, among: str, ranks: Sequence[Any], made_up: bool) -> Finding:
    size = MADE_UP_SIZE if made_up else SIZE
    what = f"an all-reduce of {size / 1e9:g} GB among {among}"
    deadline = time.monotonic() + SECONDS

    def get(calls: Any) -> Any:
        return ray.get(calls, timeout=max(deadline - time.monotonic(), 0.0))

    try:
        address = get(ranks[0].address.remote())
        get([process.join.remote(address, number, len(ranks)) for number, process in enumerate(ranks)])
        seconds = max(get([process.all_reduce.remote(size) for process in ranks]))
        transports = sorted(set().union(*get([process.leave.remote() for process in ranks])))
    except ray.exceptions.GetTimeoutError:
        advice = "GPUs are held by others, or ranks cannot reach each other: see NCCL_SOCKET_IFNAME in docs/cluster.md"
        return Finding(node, "network", f"{what} did not end within {SECONDS:.0f} s", advice)
    except ray.exceptions.RayError as error:
        advice = "training would end like this; `meds doctor --verbose` prints what the ranks print"
        return Finding(node, "network", f"{what} failed: {str(error).strip().splitlines()[-1]}", advice)
    return judge(node, what, size, seconds, len(ranks), transports)


def judge(node: str, what: str, size: int, seconds: float, ranks: int, transports: Sequence[str]) -> Finding:
    """Judge an all-reduce that took ``seconds``.

    Its bandwidth is what NCCL's tests call bus bandwidth; between nodes, all links of a node together are its limit.
    """
    bandwidth = 2 * (ranks - 1) / ranks * size / seconds / 1e9
    found = f"{what} takes {1000 * seconds:.0f} ms, {bandwidth:.3g} GB/s bus bandwidth ({', '.join(transports)})"
    advice = ""
    if TCP in transports:
        advice = "NCCL found no InfiniBand: several nodes can be slower than one, see docs/cluster.md"
    elif node == "cluster" and "gloo" not in transports and bandwidth < SLOW_BETWEEN_NODES:
        advice = "ZeRO-3 may wait for this longer than it computes, see docs/cluster.md"
    return Finding(node, "network", found, advice, slow=True)


def transports_in(log: str) -> set[str]:
    """Return the transports that NCCL's log names, such as P2P, SHM, NET/IB and NET/Socket."""
    return set(re.findall(r" via (P2P|SHM|NET/\w+)", log))


class Rank:
    """A process that takes part in all-reduces, on the GPU that Ray gives it."""

    def __init__(self) -> None:
        self._cuda = torch.cuda.is_available()

    def address(self) -> str:
        """Return an address of this process's node and a free port, as torch takes them."""
        with socket.socket() as listening:
            listening.bind(("", 0))
            return f"tcp://{ray.util.get_node_ip_address()}:{listening.getsockname()[1]}"

    def join(self, address: str, rank: int, size: int) -> None:
        """Form a group."""
        self._log = Path(tempfile.mkdtemp(prefix="meds-doctor-")) / "nccl"
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,P2P,SHM,NET", NCCL_DEBUG_FILE=str(self._log))
        backend, limit = "nccl" if self._cuda else "gloo", timedelta(seconds=SECONDS)
        dist.init_process_group(backend, init_method=address, rank=rank, world_size=size, timeout=limit)

    def all_reduce(self, size: int) -> float:
        """Return the median seconds of an all-reduce of ``size`` bytes."""
        wait = torch.cuda.synchronize if self._cuda else lambda: None
        ones = torch.ones(size // 2, dtype=torch.bfloat16, device="cuda" if self._cuda else "cpu")
        seconds = []
        for _ in range(ROUNDS + 1):
            ones.fill_(1)
            wait()
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(ones)
            wait()
            seconds.append(time.perf_counter() - began)
        ranks, found = dist.get_world_size(), float(ones[-1])
        if abs(found / ranks - 1) > 0.01:  # of rounding
            raise RuntimeError(f"the sum of {ranks} ones is {found:g}")
        return median(seconds[1:])

    def leave(self) -> set[str]:
        """Leave the group; return the transports that it used."""
        dist.destroy_process_group()
        log = self._log.read_text(errors="replace") if self._log.exists() else ""
        shutil.rmtree(self._log.parent, ignore_errors=True)
        topology = ""
        with suppress(OSError, subprocess.SubprocessError):
            topology = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=30).stdout
        peer = "NVLink" if re.search(r"\bNV\d+\b", topology) else "P2P"
        return {peer if name == "P2P" else name for name in transports_in(log)} if self._cuda else {"gloo"}
