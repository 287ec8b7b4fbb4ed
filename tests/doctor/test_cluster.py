"""All nodes of a Ray cluster, and their comparison."""

from pathlib import Path

import pytest
import ray

from meds_openrlhf.config import ConfigError
from meds_openrlhf.doctor import cluster
from meds_openrlhf.doctor.cluster import differences, examine_nodes, examine_this_machine, gpu_nodes
from meds_openrlhf.doctor.finding import Finding
from meds_openrlhf.doctor.node import NodeReport, installed
from tests.test_locks import without_locks


def test_this_machine(tmp_path: Path) -> None:
    findings = list(examine_this_machine(tmp_path / "runs", has_gpus=False))
    assert [finding.word for finding in findings] == ["ok"] * 4
    assert list((tmp_path / "runs").iterdir()) == []


def test_without_locks_that_is_what_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks(monkeypatch)
    assert [one.check for one in examine_this_machine(tmp_path, has_gpus=False) if one.word == "WRONG"] == ["locks"]


def test_a_folder_that_cannot_be_made() -> None:
    for folder in ("/proc/runs", "/etc/hostname/runs", "/etc/hostname"):
        with pytest.raises(ConfigError, match=rf"--folder: '{folder}' cannot be written to"):
            list(examine_this_machine(Path(folder), has_gpus=False))


def test_other_versions_and_clocks() -> None:
    here = {"ray": "2.55.0", "torch": "2.13.0", "python": "3.11.7"}
    sound = NodeReport([], here, clock=1000.0)
    assert list(differences("n", sound, here, arrived=1001.0)) == []
    other = NodeReport([], {"ray": "2.54.0", "python": "3.11.7"}, clock=1060.0)
    versions, clock = differences("n", other, here, arrived=1000.0)
    assert versions.found == "ray 2.54.0 (here: 2.55.0), torch missing (here: 2.13.0)"
    assert versions.word == "WRONG"
    assert (clock.word, clock.found) == ("slow", "+60 s from this one's")
    assert next(differences("n", sound, here, arrived=1030.0)).found == "-30 s from this one's"


def test_a_node_with_gpus_has_other_builds_and_more_packages_than_one_without() -> None:
    with_gpus = {"torch": "2.13.0+cu130", "flash-attn": "2.8.3", "nvidia-nccl-cu13": "2.29.7"}
    assert list(differences("n", NodeReport([], with_gpus, 0.0), {"torch": "2.13.0+cpu"}, arrived=0.0)) == []
    other = {**with_gpus, "nvidia-nccl-cu13": "2.28.1"}
    (finding,) = differences("n", NodeReport([], with_gpus, 0.0), other, arrived=0.0)
    assert finding.found == "nvidia-nccl-cu13 2.29.7 (here: 2.28.1)"


@pytest.mark.usefixtures("ray_cluster")
def test_every_node_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_nodes() == cluster.GpuNodes(1, 8, made_up=True)
    findings = list(examine_nodes(tmp_path))
    by_check = {finding.check: finding for finding in findings}
    assert "WRONG" not in {finding.word for finding in findings}
    assert by_check.keys() == {"versions", "memory", "storage", "locks", "store"}  # its GPUs are made up
    assert {finding.node for finding in findings} == {ray.util.get_node_ip_address()}

    monkeypatch.setattr(cluster, "examine", _breaks)
    broken = next(finding for finding in examine_nodes(tmp_path) if finding.check == "node")
    assert broken == Finding(broken.node, "node", "ModuleNotFoundError: No module named 'meds_openrlhf'", broken.advice)
    assert broken.word == "WRONG"
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 0.0)
    assert "no answer within 0 s" in str(next(examine_nodes(tmp_path)))


def _breaks(*_: object) -> NodeReport:
    raise ModuleNotFoundError("No module named 'meds_openrlhf'")


def test_a_small_object_store_is_slow() -> None:
    assert cluster._object_store("n", 1e9).word == "slow"
    assert cluster._object_store("n", 1e10).word == "ok"
    assert "python" in installed()
