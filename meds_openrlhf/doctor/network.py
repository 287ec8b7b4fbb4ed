"""How fast GPUs exchange gradients, within a node and between nodes: an all-reduce of 1 GB, timed.

NCCL takes the fastest transport that it finds, and plain TCP if it finds none, without a word.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from meds_openrlhf.doctor.checks import Finding
from meds_openrlhf.doctor.trial import GpuNodes
from meds_openrlhf.placement.ray_cluster import named_nodes

SIZE, MADE_UP_SIZE = 10**9, 10**7  # bytes
ROUNDS = 5
SECONDS = 180.0  # for all ranks to start, find each other and exchange
SLOW_BETWEEN_NODES = 25.0  # GB/s, of all links of a node together: at this, a 7B policy on 4 nodes waits as it computes
TCP = "NET/Socket"


def all_reduces(nodes: GpuNodes) -> Iterator[Finding]:
    """Time an all-reduce among the GPUs of each node, and among all GPUs, of the cluster that this process is in."""
    size = MADE_UP_SIZE if nodes.made_up else SIZE
    gpus = {name: int(node["Resources"].get("GPU", 0)) for name, node in named_nodes().items()}
    ranks = {name: [named_nodes()[name]["NodeID"]] * nodes.ranks(count) for name, count in gpus.items() if count}
    sound = True
    for name, places in ranks.items():
        if len(places) > 1:
            finding = _timed(name, f"{len(places)} GPUs", places, size)
            sound = sound and finding.word != "WRONG"
            yield finding
    if len(ranks) > 1 and sound:
        everyone = [place for places in ranks.values() for place in places]
        yield _timed("cluster", f"{len(everyone)} GPUs of {len(ranks)} nodes", everyone, size)


def _timed(node: str, among: str, places: Sequence[str], size: int) -> Finding:
    what = f"an all-reduce of {size / 1e9:g} GB among {among}"
    store = dist.TCPStore(ray.util.get_node_ip_address(), 0, is_master=True, wait_for_workers=False)
    remote = ray.remote(num_gpus=1, num_cpus=0, max_retries=0, max_calls=1)(all_reduce)
    ranks = []
    for rank, place in enumerate(places):
        there = remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(place, soft=False))
        ranks.append(there.remote((store.host, store.port), rank, len(places), size))
    try:
        answers = ray.get(ranks, timeout=SECONDS)
    except ray.exceptions.GetTimeoutError:
        advice = "other jobs use GPUs, or ranks cannot reach each other: see NCCL_SOCKET_IFNAME in docs/cluster.md"
        return Finding(node, "network", f"{what} did not end within {SECONDS:.0f} s", advice)
    except ray.exceptions.RayError as error:
        advice = "training would fail like this; `meds doctor --verbose` prints what the ranks print"
        return Finding(node, "network", f"{what} failed: {str(error).strip().splitlines()[-1]}", advice)
    finally:
        for call in ranks:
            ray.cancel(call, force=True)
    transports = sorted(set().union(*(transports for _, transports in answers)))
    return judge(node, what, size, max(seconds for seconds, _ in answers), len(places), transports)


def judge(node: str, what: str, size: int, seconds: float, ranks: int, transports: Sequence[str]) -> Finding:
    """Judge an all-reduce by its bus bandwidth, as NCCL's tests define it; between nodes, their links are the limit."""
    bandwidth = 2 * (ranks - 1) / ranks * size / seconds / 1e9
    found = f"{what} takes {1000 * seconds:.0f} ms, {bandwidth:.3g} GB/s bus bandwidth ({', '.join(transports)})"
    advice = ""
    if TCP in transports:
        advice = "NCCL found no InfiniBand: several nodes can be slower than one, see docs/cluster.md"
    elif node == "cluster" and "gloo" not in transports and bandwidth < SLOW_BETWEEN_NODES:
        advice = "ZeRO-3 may wait longer for this than it computes, see docs/cluster.md"
    return Finding(node, "network", found, advice, slow=True)


def all_reduce(address: tuple[str, int], rank: int, ranks: int, size: int) -> tuple[float, set[str]]:
    """Take part in all-reduces of ``size`` bytes; return the median seconds and the transports that were used."""
    on_gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory(prefix="meds-doctor-") as folder:
        log = Path(folder) / "nccl"
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,P2P,SHM,NET", NCCL_DEBUG_FILE=str(log))
        limit, options = timedelta(seconds=SECONDS), {"rank": rank, "world_size": ranks}
        store = dist.TCPStore(*address, is_master=False, timeout=limit)
        dist.init_process_group("nccl" if on_gpu else "gloo", store=store, timeout=limit, **options)
        ones = torch.ones(size // 2, dtype=torch.bfloat16, device="cuda" if on_gpu else "cpu")
        seconds = [_seconds_of_a_round(ones) for _ in range(ROUNDS + 1)][1:]
        dist.destroy_process_group()
        return median(seconds), transports_in(log.read_text(errors="replace")) if on_gpu else {"gloo"}


def _seconds_of_a_round(values: Any) -> float:
    wait = torch.cuda.synchronize if values.is_cuda else lambda: None
    dist.barrier()
    wait()
    began = time.perf_counter()
    dist.all_reduce(values)
    wait()
    return time.perf_counter() - began


def transports_in(log: str) -> set[str]:
    """Return the transports that NCCL's log names, such as P2P, SHM, NET/IB and NET/Socket."""
    return set(re.findall(r" via (P2P|SHM|NET/\w+)", log))
