"""DeepSpeed's checkpoints, of two ranks, become the models that they are of."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from meds_openrlhf.arithmetic.tiny_policy import build_char_tokenizer
from meds_openrlhf.checkpoints import mark_complete
from meds_openrlhf.config import ConfigError
from meds_openrlhf.evaluation.models import Model, converted, find_models, fingerprint_of
from meds_openrlhf.paths import RunPaths
from tests.training.ranks import run_ranks, save_tiny_policy


def main(rank: int, ranks: int, port: str, run_of_zero_2: str, run_of_zero_3: str) -> None:
    """One rank of two small trainings with DeepSpeed: checkpoints as runs leave them, and true weights."""
    import deepspeed

    deepspeed.init_distributed("gloo")
    for stage, folder in {2: run_of_zero_2, 3: run_of_zero_3}.items():
        train(rank, stage, RunPaths(Path(folder)))


def train(rank: int, stage: int, paths: RunPaths) -> None:
    """One step, and its checkpoint."""
    import deepspeed

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(paths.root / "base"), dtype=torch.bfloat16)
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine: Any = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]
    tokens = torch.arange(rank, rank + 16)[None]
    engine.backward(engine(input_ids=tokens, labels=tokens).loss)
    engine.step()
    engine.save_checkpoint(str(paths.policy_checkpoints), tag="global_step1")
    weights = engine._consolidated_16bit_state_dict() if stage == 3 else engine.module.state_dict()
    if rank == 0:
        save_file({name: weight.clone() for name, weight in weights.items()}, paths.root / "true.safetensors")
        mark_complete(paths, "global_step1", 1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A run's folder with one checkpoint for each ZeRO stage; the second's output layer is its embedding."""
    folders = {stage: tmp_path_factory.mktemp(f"zero{stage}") for stage in (2, 3)}
    for stage, folder in folders.items():
        save_tiny_policy(folder / "base", torch.bfloat16, tied=stage == 3)
        (folder / "config.yaml").write_text(f"meds: {{run_dir: x}}\nactor.model_name_or_path: {folder / 'base'}\n")
    run_ranks(__name__, 2, *folders.values())
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
