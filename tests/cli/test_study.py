"""`meds study` as it is typed, with the files in studies/."""

import shlex
from pathlib import Path

import pytest

from meds_openrlhf.cli.main import main
from meds_openrlhf.config import load_config
from tests.study.studies import write_study

REPOSITORY = Path(__file__).parents[2]
STUDIES = sorted(path.name for path in (REPOSITORY / "studies").glob("*.yaml"))


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Empty folders for runs and results, so that nothing is there yet."""
    monkeypatch.chdir(REPOSITORY)
    return ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_loads_with_all_of_its_runs_missing(
    name: str, folders: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", "status", f"studies/{name}", *folders]) == 0
    *rows, summed = capsys.readouterr().out.splitlines()
    assert all(row.split()[1] == "missing" for row in rows)
    assert summed == f"{len(rows)} runs: {len(rows)} missing"


def test_the_papers_table_is_three_models_four_methods_and_five_seeds(
    folders: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", "run", "studies/paper-table1.yaml", "--dry-run", *folders]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line[2:] for line in lines if line.startswith("# ")]
    trainings = [shlex.split(line) for line in lines if line.startswith("meds train ")]
    evaluations = [shlex.split(line) for line in lines if line.startswith("meds eval ")]
    assert len(names) == len(set(names)) == len(trainings) == len(evaluations) == 3 * 4 * 5
    assert lines[:4:3] == ["# qwen2.5-math-7b-grpo-1", "# qwen2.5-math-7b-grpo-entropy-1"]
    configs = [load_config(words[2], words[3:-1]) for words in trainings]
    assert {config.meds.run_dir for config in configs} == {f"{tmp_path}/runs/{name}" for name in names}
    assert {config.meds.max_steps for config in configs} == {200}
    assert {config.meds.memory.preset for config in configs if config.meds.penalty.alpha} == {"reference"}
    assert [words[2] for words in evaluations[::4]][:2] == ["start=Qwen/Qwen2.5-Math-7B", "start=Qwen/Qwen3-1.7B"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.needs("ray")
def test_mistakes_take_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_study(tmp_path)
    for words, line in (
        (["run", str(path), "--only", "sums-dapo-9"], "meds: --only: 'sums-dapo-9' is no run of the study; those are"),
        (["status", str(tmp_path / "none.yaml")], f"meds: FILE: '{tmp_path}/none.yaml' cannot be read (No such file"),
        (["run", str(path), "--parallel", "0"], "meds: --parallel: 0 is below 1"),
    ):
        assert main(["study", *words]) == 2
        error = capsys.readouterr().err
        assert error.startswith(line)
        assert error.count("\n") == 1
