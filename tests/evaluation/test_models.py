"""What a model's name on the command line means."""

from pathlib import Path

import pytest

from meds_openrlhf.checkpoints import mark_complete
from meds_openrlhf.config import ConfigError
from meds_openrlhf.evaluation.models import Model, agreed, find_models, fingerprint_of, response_length, runs_among
from meds_openrlhf.paths import RunPaths


def make_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    return folder


def make_run(folder: Path, steps: tuple[int, ...] = (), flags: str = "") -> RunPaths:
    folder.mkdir()
    paths = RunPaths(folder)
    paths.config.write_text(f"meds: {{run_dir: {folder}}}\nactor.model_name_or_path: own/base\n{flags}")
    for step in steps:
        shards = paths.policy_checkpoints / f"global_step{step}"
        shards.mkdir(parents=True)
        (shards / "mp_rank_00_model_states.pt").write_bytes(b"x")
        mark_complete(paths, shards.name, step)
    return paths


def find(word: str) -> Model:
    (model,) = find_models([word])
    return model


def test_a_folder_and_a_hub_name(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "qwen")
    assert find(str(folder)) == Model("qwen", folder=folder)
    assert find(f"base={folder}") == Model("base", folder=folder)
    assert find("Qwen/Qwen2.5-Math-7B") == Model("Qwen2.5-Math-7B", hub="Qwen/Qwen2.5-Math-7B")
    assert find("base=Qwen/Qwen3-8B") == Model("base", hub="Qwen/Qwen3-8B")
    with pytest.raises(ConfigError, match="label of two models"):
        find_models([str(folder), f"qwen={folder}"])


def test_a_run_is_its_trained_policy_or_its_newest_whole_checkpoint(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "run", (50, 100))
    shards = paths.policy_checkpoints / "global_step100"
    assert find(str(paths.root)) == Model("run@100", shards=shards, base="own/base")
    (shards / "mp_rank_00_model_states.pt").unlink()
    assert find(str(paths.root)).label == "run@50"
    make_model(paths.model)
    assert find(str(paths.root)) == Model("run", folder=paths.model)
    early = paths.policy_checkpoints / "global_step50"
    assert find(f"early={paths.root}@50") == Model("early", shards=early, base="own/base")
    (paths.model / "tokenizer_config.json").unlink()  # it is being written
    assert find(str(paths.root)).label == "run@50"


def test_openrlhfs_own_folder_wins_and_outlives_its_checkpoint(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "run", (50,))
    for step in (25, 50):
        make_model(paths.checkpoints / f"global_step{step}_hf")
    assert find(f"{paths.root}@50") == Model("run@50", folder=paths.checkpoints / "global_step50_hf")
    assert find(f"{paths.root}@25") == Model("run@25", folder=paths.checkpoints / "global_step25_hf")


def test_adapters_in_a_checkpoint_are_merged_as_the_run_scaled_them(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "run", (50,), "ds.lora: {rank: 8, alpha: 32}\n")
    shards = paths.policy_checkpoints / "global_step50"
    assert find(str(paths.root)) == Model("run@50", shards=shards, base="own/base", lora_alpha=32)
    paths.config.write_text("meds: {run_dir: x}\nactor.model_name_or_path: own/base\nds.lora.rank: 8\n")
    assert find(str(paths.root)).lora_alpha == 16  # OpenRLHF's default


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("{tmp}/nothing", "does not exist (looked in"),
        ("{tmp}/empty", "is neither a run (config.yaml) nor a model (config.json)"),
        ("{tmp}/run@7", "has no complete checkpoint of step 7. Choose from 50, 100"),
        ("{tmp}/fresh", "has neither a trained model nor a complete checkpoint yet"),
        ("{tmp}/empty@7", "is not a run: it has no config.yaml"),
        ("{tmp}/adapter", "contains only LoRA adapters"),
        ("a b={tmp}/run", "has the invalid label 'a b'"),
    ],
)
def test_what_is_no_model(word: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    make_run(tmp_path / "run", (50, 100))
    make_run(tmp_path / "fresh")
    (make_model(tmp_path / "adapter") / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError) as error:
        find(word.format(tmp=tmp_path))
    assert error.value.field == "MODEL"
    assert message in str(error.value)


def test_responses_are_as_long_as_those_of_the_runs(tmp_path: Path) -> None:
    def length(words: list[str]) -> int | None:
        return agreed(runs_among(words), "--max-tokens", response_length)

    runs = [
        str(make_run(tmp_path / str(length), flags=f"rollout.max_new_tokens: {length}\n").root) for length in (80, 9)
    ]
    assert length(["Qwen/Qwen3-8B", str(make_model(tmp_path / "qwen"))]) is None
    assert length(["Qwen/Qwen3-8B", f"a={runs[0]}", f"b={runs[0]}@3"]) == 80
    assert length([str(make_run(tmp_path / "whole", flags="data.max_len: 70\n").root)]) == 70
    with pytest.raises(ConfigError, match=r"--max-tokens: must be given: .*80: 80, .*9: 9\)"):
        length(runs)


def test_weights_are_told_apart_and_paths_are_not(tmp_path: Path) -> None:
    one, same, other = (make_model(tmp_path / name) for name in ("one", "same", "other"))
    weights = bytearray(3 << 20)
    for folder in (one, same):
        (folder / "model.safetensors").write_bytes(weights)
    weights[-1] = 1
    (other / "model.safetensors").write_bytes(weights)
    assert fingerprint_of(one) == fingerprint_of(same) != fingerprint_of(other)
    (same / "more").write_text("")
    assert fingerprint_of(one) != fingerprint_of(same)
