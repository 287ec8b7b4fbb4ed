"""What a recipe's checkpoints take, against the disk."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meds_openrlhf.config import MedsSettings, RunConfig
from meds_openrlhf.doctor import disk
from meds_openrlhf.doctor.disk import room_for_checkpoints
from tests.placement.clusters import found_shape

SEVEN = "Qwen/Qwen2.5-Math-7B"  # 7.616 B parameters


@pytest.mark.parametrize(
    ("flags", "free", "found", "word"),
    [
        ({}, 400, "3 checkpoints of Qwen/Qwen2.5-Math-7B and the trained model take 335 GB, 400 GB free", "ok"),
        ({}, 300, "3 checkpoints of Qwen/Qwen2.5-Math-7B and the trained model take 335 GB, 300 GB free", "WRONG"),
        ({"ckpt.max_num": 2, "ckpt.save_hf": True}, 230, "230 GB free; every save adds 15 GB with ckpt.save_hf", "ok"),
        ({"ckpt.max_num": 2}, 228, "2 checkpoints of", "WRONG"),
        ({"eval.dataset": "e.jsonl"}, 400, "4 checkpoints of Qwen/Qwen2.5-Math-7B and the trained model", "WRONG"),
        ({"algo.advantage.estimator": "gae"}, 600, "and the trained model take 655 GB, 600 GB free", "WRONG"),
        ({"ds.lora.rank": 32}, 62, "and the trained model take 61 GB, 62 GB free", "ok"),
        ({"ckpt.disable_ds": True}, 16, "and the trained model take 15 GB, 16 GB free", "ok"),
        ({"actor.model_name_or_path": "own/model"}, 1, "own/model: sizes unknown", "ok"),
    ],
)
def test_checkpoints_have_room_or_not(
    flags: dict[str, Any], free: int, found: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "find_shape", found_shape)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: SimpleNamespace(free=free * 10**9))
    config = RunConfig(MedsSettings(run_dir="runs"), {"actor.model_name_or_path": SEVEN, **flags})
    finding = room_for_checkpoints(tmp_path, config)
    assert found in finding.found
    assert finding.word == word
