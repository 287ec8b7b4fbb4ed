"""The nodes of a Ray cluster, each check with the fault that it is for."""

from pathlib import Path

import pytest
import ray

from meds_openrlhf.config import ConfigError
from meds_openrlhf.doctor import cluster
from meds_openrlhf.doctor.cluster import (
    differences,
    examine,
    examine_nodes,
    examine_this_machine,
    gpu_nodes,
    installed,
)
from meds_openrlhf.doctor.finding import Finding

TOKEN = ".meds-doctor-x"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the token of the process that asks."""
    (tmp_path / TOKEN).touch()
    return tmp_path


def storage(folder: Path, node: str = "10.0.0.1") -> Finding:
    (finding,), _ = examine(node, folder, TOKEN)
    assert finding.check == "storage"
    return finding


def test_this_machine(tmp_path: Path) -> None:
    (finding,) = examine_this_machine(tmp_path / "runs")
    assert (finding.check, finding.word) == ("storage", "ok")
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_folder_that_cannot_be_made() -> None:
    for folder in ("/proc/runs", "/etc/hostname/runs", "/etc/hostname"):
        with pytest.raises(ConfigError, match=rf"--folder: '{folder}' cannot be written to"):
            list(examine_this_machine(Path(folder)))


def test_a_folder_that_is_not_shared_or_not_writable(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert storage(folder).word == "ok"
    assert [path.name for path in folder.iterdir()] == [TOKEN]
    other = storage(tmp_path_factory.mktemp("another"))
    assert other.word == "WRONG"
    assert "does not show what another node wrote; it is another folder there: name one with --folder" in str(other)

    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(cluster, "write_atomically", read_only)
    assert "Read-only file system; ranks save checkpoints there from every node" in str(storage(folder))


def test_storage_that_is_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "LEAST_DISK", 2**60)
    assert storage(folder).word == "WRONG"
    assert "make room" in str(storage(folder))


def test_other_versions() -> None:
    here = {"ray": "2.55.0", "torch": "2.13.0", "python": "3.11.7"}
    assert list(differences("n", here, here)) == []
    (versions,) = differences("n", {"ray": "2.54.0", "python": "3.11.7"}, here)
    assert versions.found == "ray 2.54.0 (here: 2.55.0), torch missing (here: 2.13.0)"
    assert versions.word == "WRONG"
    assert {"python", "torch", "vllm", "deepspeed", "openrlhf", "transformers", "ray"} <= installed().keys()


def test_a_node_with_gpus_has_other_builds_and_more_packages_than_one_without() -> None:
    with_gpus = {"torch": "2.13.0+cu130", "flash-attn": "2.8.3", "nvidia-nccl-cu13": "2.29.7"}
    assert list(differences("n", with_gpus, {"torch": "2.13.0+cpu"})) == []
    other = {**with_gpus, "nvidia-nccl-cu13": "2.28.1"}
    (finding,) = differences("n", with_gpus, other)
    assert finding.found == "nvidia-nccl-cu13 2.29.7 (here: 2.28.1)"


@pytest.mark.usefixtures("ray_cluster")
def test_every_node_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_nodes() == cluster.GpuNodes(1, 8, made_up=True)
    (storage,) = examine_nodes(tmp_path)
    assert (storage.node, storage.check, storage.word) == (ray.util.get_node_ip_address(), "storage", "ok")

    monkeypatch.setattr(cluster, "examine", _breaks)
    broken = next(finding for finding in examine_nodes(tmp_path) if finding.check == "node")
    assert broken == Finding(broken.node, "node", "ModuleNotFoundError: No module named 'meds_openrlhf'", broken.advice)
    assert broken.word == "WRONG"
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 0.0)
    assert "no answer within 0 s" in str(next(examine_nodes(tmp_path)))


def _breaks(*_: object) -> None:
    raise ModuleNotFoundError("No module named 'meds_openrlhf'")
