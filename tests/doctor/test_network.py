"""An all-reduce between ranks that Ray starts, and what its time means."""

import time

import pytest
import ray

from meds_openrlhf.doctor import network
from meds_openrlhf.doctor.network import all_reduces, device_of, judge, transports_in
from tests.failing import failing


@pytest.mark.parametrize(
    ("ids", "visible", "device"), [([], 0, "cpu"), (["3"], 1, "cuda:0"), ([3], 8, "cuda:3"), (["0"], 8, "cuda:0")]
)
def test_a_rank_takes_the_gpu_that_ray_gave_it(ids: list, visible: int, device: str) -> None:
    """All of a node's GPUs are visible with RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES."""
    assert device_of(ids, visible) == device


@pytest.mark.usefixtures("ray_cluster")
def test_ranks_of_a_node_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    address = ray.util.get_node_ip_address()
    (finding,) = all_reduces({address: 2}, 10**7)
    assert (finding.node, finding.check, finding.word) == (address, "network", "ok")
    assert finding.found.startswith("an all-reduce of 0.01 GB among 2 GPUs takes ")
    assert finding.found.endswith(" GB/s bus bandwidth (gloo)")

    def late(*_: object) -> None:
        time.sleep(5)

    monkeypatch.setattr(network, "all_reduce", failing(RuntimeError("no NCCL")))
    (failed,) = all_reduces({address: 2}, 10**7)
    assert (failed.word, failed.found[-31:]) == ("WRONG", "GPUs failed: RuntimeError: no NCCL"[-31:])
    monkeypatch.setattr(network, "all_reduce", late)
    monkeypatch.setattr(network, "SECONDS", 1.0)
    (slow,) = all_reduces({address: 2}, 10**7)
    assert (slow.word, slow.found) == ("WRONG", "an all-reduce of 0.01 GB among 2 GPUs did not end within 1 s")


@pytest.mark.parametrize(
    ("node", "seconds", "ranks", "transports", "found", "word"),
    [
        ("a", 0.005, 8, {"P2P"}, "takes 5 ms, 350 GB/s bus bandwidth (P2P)", "ok"),
        ("cluster", 0.05, 32, {"NET/IB", "P2P"}, "takes 50 ms, 38.8 GB/s bus bandwidth (NET/IB, P2P)", "ok"),
        ("cluster", 2.0, 32, {"NET/Socket"}, "takes 2000 ms, 0.969 GB/s bus bandwidth (NET/Socket)", "slow"),
        ("cluster", 0.5, 32, {"NET/IB"}, "takes 500 ms, 3.88 GB/s bus bandwidth (NET/IB)", "slow"),
        ("cluster", 0.5, 32, {"gloo"}, "takes 500 ms, 3.88 GB/s bus bandwidth (gloo)", "ok"),
    ],
)
def test_what_a_time_means(node: str, seconds: float, ranks: int, transports: set[str], found: str, word: str) -> None:
    finding = judge(node, "it", 10**9, seconds, ranks, transports)
    assert (finding.found, finding.word) == (f"it {found}", word)


def test_nccl_says_which_way_it_takes() -> None:
    log = """
        node-0:71:90 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>
        node-0:71:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
        node-0:71:90 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/3/GDRDMA
    """
    assert transports_in(log) == {"P2P", "NET/IB"}
    assert transports_in("Channel 01/0 : 1[1] -> 0[0] via SHM/direct\nx via NET/Socket/0") == {"SHM", "NET/Socket"}
