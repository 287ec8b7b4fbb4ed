"""Each check with the fault that it is for: nodes of a Ray cluster, a recipe's checkpoints, W&B's server."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from meds_openrlhf.config import ConfigError, MedsSettings, RunConfig
from meds_openrlhf.doctor import checks
from meds_openrlhf.doctor.checks import (
    Finding,
    differences,
    examine,
    examine_nodes,
    examine_wandb,
    gpus_of_nodes,
    installed,
    room_for_checkpoints,
)
from tests.failing import failing
from tests.http_server import JsonHandler, serving
from tests.placement.clusters import found_shape
from tests.processes import free_ports

TOKEN = ".meds-doctor-x"
KEY = "0123456789abcdef" * 2


def storage(folder: Path) -> Finding:
    (finding,), _ = examine("10.0.0.1", folder / TOKEN, compiles=True)
    assert finding.check == "storage"
    return finding


def test_a_node_that_cannot_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / TOKEN).touch()
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    (finding, _), _ = examine("10.0.0.1", tmp_path / TOKEN, compiles=True)
    assert (finding.word, finding.check) == ("WRONG", "compiler")
    assert finding.found.startswith(f"a C++ compiler and {tmp_path}/Python.h not found, which Triton and vLLM compile")
    assert [found.check for found in examine("10.0.0.1", tmp_path / TOKEN, compiles=False)[0]] == ["storage"]


def test_a_folder_that_is_not_shared_or_not_writable(tmp_path: Path) -> None:
    (tmp_path / TOKEN).touch()
    assert storage(tmp_path).word == "ok"
    assert [path.name for path in tmp_path.iterdir()] == [TOKEN]
    (tmp_path / TOKEN).unlink()
    line = f"WRONG  10.0.0.1         storage   {tmp_path} is not the folder that other nodes see; name a folder"
    assert line in str(storage(tmp_path))
    assert storage(Path("/proc")).word == "WRONG"
    assert storage(tmp_path / "none").found == f"{tmp_path}/none: No such file or directory"


def test_other_versions() -> None:
    here = {"ray": "2.55.0", "torch": "2.13.0+cpu", "python": "3.11.7"}
    assert list(differences("n", here, here)) == []
    # A node with GPUs has other builds, and more packages.
    assert list(differences("n", {"torch": "2.13.0+cu130", "flash-attn": "2.8.3"}, here)) == []
    (finding,) = differences("n", {"ray": "2.54.0", "python": "3.11.7"}, here)
    assert (finding.found, finding.word) == ("ray 2.54.0 (here: 2.55.0)", "WRONG")
    assert {"python", "torch", "vllm", "deepspeed", "openrlhf", "transformers", "ray"} <= installed().keys()


@pytest.mark.usefixtures("ray_cluster")
def test_every_node_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = ray.util.get_node_ip_address()
    assert gpus_of_nodes() == ({address: 2}, True)
    (storage,) = examine_nodes(tmp_path / "runs")
    assert (storage.node, storage.check, storage.word) == (address, "storage", "ok")
    assert list((tmp_path / "runs").iterdir()) == []
    for folder in ("/proc/runs", "/etc/hostname/runs", "/etc/hostname"):
        with pytest.raises(ConfigError, match=rf"^--folder={folder}: cannot be written to"):
            list(examine_nodes(Path(folder)))

    monkeypatch.setattr(checks, "examine", failing(ModuleNotFoundError("No module named 'meds_openrlhf'")))
    (broken,) = examine_nodes(tmp_path)
    assert (broken.check, broken.found) == ("node", "ModuleNotFoundError: No module named 'meds_openrlhf'")
    assert broken.word == "WRONG"


@pytest.mark.parametrize(
    ("flags", "free", "found", "word"),
    [
        ({}, 400, "3 checkpoints of Qwen/Qwen2.5-Math-7B and the trained model take 335 GB, 400 GB free", "ok"),
        ({}, 300, "3 checkpoints of Qwen/Qwen2.5-Math-7B and the trained model take 335 GB, 300 GB free", "WRONG"),
        (
            {"ckpt.save_steps": None},
            130,
            "1 checkpoint of Qwen/Qwen2.5-Math-7B and the trained model take 122 GB",
            "ok",
        ),
        ({"ckpt.max_num": 2, "ckpt.save_hf": True}, 230, "230 GB free; every save adds 15 GB with ckpt.save_hf", "ok"),
        ({"eval.dataset": "e.jsonl"}, 400, "4 checkpoints of Qwen/Qwen2.5-Math-7B and the trained model", "WRONG"),
        ({"algo.advantage.estimator": None}, 600, "and the trained model take 655 GB, 600 GB free", "WRONG"),
        ({"ds.lora.rank": 32}, 62, "and the trained model take 61 GB, 62 GB free", "ok"),
        ({"ckpt.disable_ds": True}, 16, "and the trained model take 15 GB, 16 GB free", "ok"),
        ({"actor.model_name_or_path": "own/model"}, 1, "own/model: the size of this model, and so", "ok"),
    ],
)
def test_checkpoints_have_room_or_not(
    flags: dict[str, Any], free: int, found: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "find_shape", found_shape)
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: SimpleNamespace(free=free * 10**9))
    seven = {"actor.model_name_or_path": "Qwen/Qwen2.5-Math-7B", "algo.advantage.estimator": "group_norm"}  # 7.616 B
    seven |= {"ckpt.save_steps": 20}
    finding = room_for_checkpoints(tmp_path, RunConfig(MedsSettings(run_dir="runs"), {**seven, **flags}))
    assert found in finding.found
    assert finding.word == word


class _Refusing(JsonHandler):
    def do_GET(self) -> None:
        self.say(404, {})


def test_a_wandb_server_that_answers_and_one_that_does_not() -> None:
    with serving(_Refusing) as url:
        found = examine_wandb({"WANDB_API_KEY": KEY, "WANDB_BASE_URL": url})
        assert str(found).endswith("a key is set, and 127.0.0.1 answers")
    address = f"http://user:{KEY}@127.0.0.1:{free_ports(1)[0]}"
    lost = examine_wandb({"WANDB_API_KEY": KEY, "WANDB_BASE_URL": address})
    assert (lost.word, lost.found[:38]) == ("slow", "a key is set, but 127.0.0.1 does not a")
    assert KEY not in str(lost)
    assert "WANDB_API_KEY is not set" in str(examine_wandb({}))
    assert "offline" in str(examine_wandb({"WANDB_MODE": "offline", "WANDB_API_KEY": KEY}))
