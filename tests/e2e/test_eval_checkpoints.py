"""DeepSpeed's checkpoints, of two ranks, become the models that they are of."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

from meds_openrlhf.arithmetic.tiny_policy import build_char_tokenizer
from meds_openrlhf.config import ConfigError
from meds_openrlhf.evaluation.models import Model, converted, find_models, fingerprint_of
from tests.e2e.conftest import REPOSITORY
from tests.ports import free_ports

RANKS = 2
SIZES = dict(vocab_size=261, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A run's folder with one checkpoint for each ZeRO stage; the second's output layer is its embedding."""
    folders = {stage: tmp_path_factory.mktemp(f"zero{stage}") for stage in (2, 3)}
    for stage, folder in folders.items():
        Qwen2Config(**SIZES, num_key_value_heads=3, tie_word_embeddings=stage == 3).save_pretrained(folder / "base")
        build_char_tokenizer().save_pretrained(folder / "base")
        (folder / "config.yaml").write_text(f"meds: {{run_dir: x}}\nactor.model_name_or_path: {folder / 'base'}\n")
    port = str(free_ports(1)[0])
    script = [sys.executable, "-m", "tests.e2e.checkpoint_worker"]
    ranks = [
        subprocess.Popen([*script, str(rank), str(RANKS), port, *map(str, folders.values())], cwd=REPOSITORY)
        for rank in range(RANKS)
    ]
    assert [rank.wait(300) for rank in ranks] == [0] * RANKS
    return folders


@pytest.mark.parametrize("stage", [2, 3])
def test_the_converted_weights_are_the_true_ones(stage: int, runs: dict[int, Path], tmp_path: Path) -> None:
    (model,) = find_models([f"run={runs[stage]}"])
    assert model.shards == runs[stage] / "checkpoints/_actor/global_step1"
    folder = converted(model, fingerprint_of(model.shards), tmp_path)
    weights = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    true = load_file(runs[stage] / "true.safetensors")
    assert set(weights) == {*true, "lm_head.weight"}
    assert all(torch.equal(weights[name], true[name]) for name in true)
    assert ("lm_head.weight" in load_file(folder / "model.safetensors")) == (stage == 2)
    assert AutoTokenizer.from_pretrained(folder).encode("2+2") == build_char_tokenizer().encode("2+2")
    made = folder.stat().st_mtime_ns
    assert converted(model, fingerprint_of(model.shards), tmp_path) == folder
    assert folder.stat().st_mtime_ns == made
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_without_shards_is_refused(tmp_path: Path) -> None:
    (tmp_path / "global_step1").mkdir()
    model = Model("run@1", shards=tmp_path / "global_step1", base="own/base")
    with pytest.raises(ConfigError, match=r"cannot be assembled by DeepSpeed .* --ckpt.save_hf"):
        converted(model, "f00d" * 16, tmp_path / "out")
    assert not (tmp_path / "out").exists()
