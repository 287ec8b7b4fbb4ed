"""The nodes that a run is sized to, with and without a Ray cluster."""

import pytest
import ray
import torch
from ray._private import services

from meds_openrlhf.config import ConfigError
from meds_openrlhf.runtime.devices import MADE_UP_CPUS, MADE_UP_GPUS
from meds_openrlhf.training.start import nodes
from meds_openrlhf.training.start.nodes import nodes_now, stated_nodes
from tests.conftest import RayCluster
from tests.failing import failing


def test_stated_nodes_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert [node.name for node in stated_nodes("2x4", on_cpu=False) or ()] == ["node 0", "node 1"]
    assert stated_nodes(None, on_cpu=False) is None
    with pytest.raises(ConfigError, match=r"^--cluster=2: must be nodes x GPUs per node"):
        stated_nodes("2", on_cpu=False)
    monkeypatch.delenv("RAY_ADDRESS")
    assert len(stated_nodes("2x4", on_cpu=True) or ()) == 2
    with pytest.raises(
        ConfigError, match=r"^--cluster=4x8: no Ray cluster is running, and this machine has 8 GPUs\. Set"
    ):
        stated_nodes("4x8", on_cpu=True)  # which nobody could join


def test_this_machine_is_taken_without_a_ray_which_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", failing(AssertionError("started")))
    (made_up,) = nodes_now(on_cpu=True)
    assert (made_up.gpus, made_up.free_cpus, made_up.gpu_memory_gb) == (MADE_UP_GPUS, MADE_UP_CPUS, None)
    monkeypatch.setattr(services, "canonicalize_bootstrap_address", lambda _: None)  # whatever runs on this machine
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(nodes, "smallest_card", lambda: 79.6)
    (here,) = nodes_now(on_cpu=False)
    assert (here.gpus, here.gpu_memory_gb, here.is_drivers) == (2, 79.6, True)
    assert here.cpus >= 1


def test_the_nodes_of_a_cluster_are_asked_for_and_the_connection_is_left(
    ray_head: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ray_head.address)
    (node,) = nodes_now(on_cpu=True)
    assert (node.gpus, node.cpus, bool(node.id)) == (8, 16, True)
    assert not ray.is_initialized()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"^RAY_ADDRESS=127.0.0.1:1: no Ray cluster answers .*Unset it to start"):
        nodes_now(on_cpu=True)
