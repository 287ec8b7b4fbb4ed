"""A job finds what its settings name, or is refused before anything is sent."""

from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError, load_config
from meds_openrlhf.config.file_settings import FILE_SETTINGS
from meds_openrlhf.jobs.named_files import require_paths
from meds_openrlhf.jobs.packaging import survey
from meds_openrlhf.training.preparation import checks


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    for name in ("configs/run.yaml", "data/train.jsonl", "data/eval.jsonl", "model/config.json", "model/weights.bin"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("meds: {run_dir: /shared/runs/x}\n")
    (folder / ".gitignore").write_text("/data/eval.jsonl\n/model/weights.bin\n")
    return folder


def check(root: Path, *overrides: str, config: str = "configs/run.yaml") -> str:
    return require_paths(load_config(root / config, overrides), root / config, survey(root))


def test_what_goes_along_or_lies_on_shared_storage_is_fine(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(root, "--data.prompt_dataset=data/train.jsonl", "--actor.model_name_or_path=Qwen/Qwen3-8B") == (
        "configs/run.yaml"
    )
    overrides = ("--data.prompt_dataset=/shared/a.jsonl,./data/train.jsonl", "--reward.remote_url=http://judge:5000")
    assert check(root, *overrides, "--meds.memory.archive=s3://bucket/x") == "configs/run.yaml"
    monkeypatch.chdir(root / "configs")  # relative paths count from the working folder, whose copy the job runs in
    assert require_paths(load_config("run.yaml"), Path("run.yaml"), survey(root)) == "configs/run.yaml"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("--meds.run_dir=runs/x", "meds.run_dir: 'runs/x' is relative"),
        ("--meds.memory.branch_from=runs/x/s.json", "meds.memory.branch_from: 'runs/x/s.json' is relative"),
        ("--meds.memory.archive=archive", "meds.memory.archive: 'archive' is relative"),
        ("--logger.tensorboard_dir=tb", "logger.tensorboard_dir: 'tb' is relative"),
        ("--eval.dataset=data/eval.jsonl", "eval.dataset: 'data/eval.jsonl' would not be sent: it is left out by"),
        ("--actor.model_name_or_path=model", "actor.model_name_or_path: 'model' would not be sent: model/weights.bin"),
        ("--data.prompt_dataset=data/no.jsonl", "data.prompt_dataset: 'data/no.jsonl' does not exist in "),
        ("--data.prompt_dataset=data/train.jsonl,../b.jsonl", "data.prompt_dataset: '../b.jsonl' lies outside "),
    ],
)
def test_what_the_job_would_not_find(root: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(root, override)
    assert str(refused.value).startswith(message)


def test_a_config_outside_of_the_folder(root: Path) -> None:
    (root.parent / "other.yaml").write_text("meds: {run_dir: /shared/runs/x}\n")
    with pytest.raises(ConfigError, match=r"CONFIG: '../other.yaml' lies outside"):
        check(root, config="../other.yaml")


def test_every_path_that_a_run_makes_absolute_is_looked_at() -> None:
    flags = {key: "." for key in FILE_SETTINGS}
    assert {key for key, value in checks.with_absolute_paths(flags).items() if value != "."} == set(FILE_SETTINGS)
