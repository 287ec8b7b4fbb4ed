"""What is not a checkpoint of DeepSpeed. Real ones: tests/e2e/test_eval_checkpoints.py."""

from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.evaluation.models.conversion import converted
from meds_openrlhf.evaluation.models.naming import Model


def test_a_folder_without_shards(tmp_path: Path) -> None:
    model = Model("run@1", shards=tmp_path / "_actor" / "global_step1", base="own/base")
    assert model.shards is not None
    model.shards.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"cannot be assembled by DeepSpeed .* --ckpt.save_hf"):
        converted(model, "f00d" * 16, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_was_made_before_is_taken(tmp_path: Path) -> None:
    made = tmp_path / "model-f00df00df00d"
    made.mkdir()
    assert converted(Model("run@1", shards=tmp_path / "gone", base="own/base"), "f00d" * 16, tmp_path) == made
