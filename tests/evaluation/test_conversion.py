"""DeepSpeed's checkpoints become the models that they are of."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

from meds_openrlhf.config import ConfigError
from meds_openrlhf.data.char_tokenizer import build_char_tokenizer
from meds_openrlhf.evaluation.conversion import converted
from meds_openrlhf.evaluation.models import Model, find_models, fingerprint_of

SIZES = dict(vocab_size=261, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3)


def make_run(folder: Path, tied: bool) -> Model:
    """A run whose checkpoint is still to be made."""
    Qwen2Config(**SIZES, num_key_value_heads=3, tie_word_embeddings=tied).save_pretrained(folder / "base")
    build_char_tokenizer().save_pretrained(folder / "base")
    (folder / "config.yaml").write_text(f"meds: {{run_dir: x}}\nactor.model_name_or_path: {folder / 'base'}\n")
    return Model("run@1", shards=folder / "checkpoints/_actor/global_step1", base=str(folder / "base"))


def train(folder: Path, ranks: int, stage: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    script = [sys.executable, "-m", "tests.evaluation.checkpoint_worker"]
    processes = [
        subprocess.Popen([*script, str(rank), str(ranks), port, str(stage), str(folder)], cwd=Path(__file__).parents[2])
        for rank in range(ranks)
    ]
    assert [process.wait(100) for process in processes] == [0] * ranks


@pytest.mark.parametrize(("stage", "ranks", "tied"), [(2, 1, True), (3, 2, False)])
def test_the_converted_weights_are_the_true_ones(stage: int, ranks: int, tied: bool, tmp_path: Path) -> None:
    expected = make_run(tmp_path, tied)
    train(tmp_path, ranks, stage)
    (model,) = find_models([str(tmp_path)])
    assert (model.shards, model.base) == (expected.shards, expected.base)
    folder = converted(model, "f00d" * 16, tmp_path / "out")
    weights = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    true = load_file(tmp_path / "true.safetensors")
    assert set(weights) == set(true)
    assert all(torch.equal(weights[name], true[name]) for name in true)
    assert AutoTokenizer.from_pretrained(folder).encode("2+2") == build_char_tokenizer().encode("2+2")
    made = folder.stat().st_mtime_ns
    assert converted(model, "f00d" * 16, tmp_path / "out") == folder
    assert folder.stat().st_mtime_ns == made
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == [folder.name]


def test_files_that_are_no_checkpoint(tmp_path: Path) -> None:
    model = make_run(tmp_path, tied=False)
    assert model.shards is not None
    model.shards.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"cannot be put together by DeepSpeed .* --ckpt.save_hf"):
        converted(model, fingerprint_of(model.shards), tmp_path / "out")
    assert list((tmp_path / "out").glob("*")) == []
