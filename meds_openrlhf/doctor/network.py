"""How fast GPUs exchange gradients. NCCL takes the fastest transport that it finds, and says nothing if it is TCP."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from meds_openrlhf.doctor.checks import Finding
from meds_openrlhf.placement.ray_cluster import named_nodes

ROUNDS = 5
SECONDS = 180.0  # for all ranks to start, find each other and exchange
SLOW_BETWEEN_NODES = 25.0  # GB/s, of all links of a node together: at this, a 7B policy on 4 nodes waits as it computes


def all_reduces(gpus: Mapping[str, int], size: int) -> Iterator[Finding]:
    """Time an all-reduce of ``size`` bytes among each node's ``gpus``, a number per node, and among all."""
    ids = {name: node["NodeID"] for name, node in named_nodes().items()}
    findings = [_timed(name, f"{n} GPUs", [ids[name]] * n, size) for name, n in gpus.items() if n > 1]
    yield from findings
    if len(gpus) > 1 and not any(finding.word == "WRONG" for finding in findings):
        everyone = [ids[name] for name, n in gpus.items() for _ in range(n)]
        yield _timed("cluster", f"{len(everyone)} GPUs of {len(gpus)} nodes", everyone, size)


def _timed(node: str, among: str, places: Sequence[str], size: int) -> Finding:
    what = f"an all-reduce of {size / 1e9:g} GB among {among}"
    store = dist.TCPStore(ray.util.get_node_ip_address(), 0, is_master=True, wait_for_workers=False)
    remote, ranks = ray.remote(num_gpus=1, num_cpus=0, max_retries=0, max_calls=1)(all_reduce), []
    for rank, place in enumerate(places):
        there = remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(place, soft=False))
        ranks.append(there.remote((store.host, store.port), rank, len(places), size))
    try:
        seconds, transports = zip(*ray.get(ranks, timeout=SECONDS))
    except ray.exceptions.GetTimeoutError:
        advice = "other jobs use GPUs, or ranks cannot reach each other: see NCCL_SOCKET_IFNAME in docs/cluster.md"
        return Finding(node, "network", f"{what} did not end within {SECONDS:.0f} s", advice)
    except ray.exceptions.RayError as error:
        advice = "a run would fail too: see --verbose"
        return Finding(node, "network", f"{what} failed: {str(error).strip().splitlines()[-1]}", advice)
    return judge(node, what, size, max(seconds), len(places), set().union(*transports))


def judge(node: str, what: str, size: int, seconds: float, ranks: int, transports: set[str]) -> Finding:
    """Judge an all-reduce by its bus bandwidth, as NCCL's tests define it; between nodes, their links are the limit."""
    bandwidth = 2 * (ranks - 1) / ranks * size / seconds / 1e9
    used, advice = ", ".join(sorted(transports)), ""
    found = f"{what} takes {1000 * seconds:.0f} ms, {bandwidth:.3g} GB/s bus bandwidth ({used})"
    if "NET/Socket" in transports:
        advice = "NCCL found no InfiniBand: several nodes can be slower than one, see docs/cluster.md"
    elif node == "cluster" and "gloo" not in transports and bandwidth < SLOW_BETWEEN_NODES:
        advice = "ZeRO-3 may wait longer for this than it computes, see docs/cluster.md"
    return Finding(node, "network", found, advice, slow=True)


def all_reduce(address: tuple[str, int], rank: int, ranks: int, size: int) -> tuple[float, set[str]]:
    """Take part in all-reduces of ``size`` bytes; return the seconds of the fastest and the transports used."""
    device, seconds = device_of(ray.get_gpu_ids(), torch.cuda.device_count()), []
    with tempfile.TemporaryDirectory(prefix="meds-doctor-") as folder:
        log = Path(folder) / "nccl"
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,P2P,SHM,NET", NCCL_DEBUG_FILE=str(log))
        store = dist.TCPStore(*address, is_master=False, timeout=timedelta(seconds=SECONDS))
        own: dict[str, Any] = {"backend": "gloo"}
        if device != "cpu":
            own = {"backend": "nccl", "device_id": torch.device(device)}
        dist.init_process_group(**own, store=store, rank=rank, world_size=ranks)
        values = torch.ones(size // 2, dtype=torch.bfloat16, device=device)
        for _ in range(ROUNDS):
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(values)
            values[0].item()  # waits for the GPU
            seconds.append(time.perf_counter() - began)
        dist.destroy_process_group()
        return min(seconds), {"gloo"} if device == "cpu" else transports_in(log.read_text(errors="replace"))


def device_of(ids: Sequence[str | int], visible: int) -> str:
    """Return the device of a process to which Ray has given the GPU ``ids``, and which sees as many as ``visible``.

    It sees that one alone, or with RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES all of the node's.
    """
    return "cpu" if not visible else f"cuda:{int(ids[0])}" if visible > 1 else "cuda:0"


def transports_in(log: str) -> set[str]:
    """Return the transports that NCCL's log names, such as P2P, SHM, NET/IB and NET/Socket."""
    return set(re.findall(r" via (P2P|SHM|NET/\w+)", log))
