"""What needs no training: runs that fail, what they share, and what is refused; whole runs are in tests/e2e."""

import subprocess
from pathlib import Path

import pytest

from meds_openrlhf.locks import try_lock
from studies import run as script
from studies.results import read_results
from studies.run import commit_of, main
from studies.study import Run
from tests.studies.small import small, write_results, write_study

FAILS = "python -c \"import sys; print('line one'); sys.exit('no data for {seed}')\""
TASKS = {"a": {"benchmarks": ["x.jsonl"], "prepare": [FAILS]}}
ONE_METHOD = {"tasks": TASKS, "seeds": [1, 2], "methods": {"dapo": {"config": "dapo.yaml"}}, "claims": {}}


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(script, "end_children_with_this_process", lambda: None)
    monkeypatch.setattr(script.signal, "signal", lambda *_: None)


def test_a_failed_run_has_its_last_line_and_is_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    done, failing = write_results(small(Path(), **ONE_METHOD), lambda _: 2)
    failing.result.unlink()
    for _ in range(2):
        assert main(["small.yaml"]) == 1
        assert capsys.readouterr().out.splitlines() == [
            "small: 1 runs to make",
            "a-dapo-2: preparing",
            "a-dapo-2: failed, no data for 2; all output is in runs/small/a-dapo-2.log",
        ]
    assert failing.log.read_text().count("line one\nno data for 2\n") == 2
    assert list(read_results(done.study)) == [done.key]
    assert main(["small.yaml", "--only", "a-dapo-1"]) == 0
    assert capsys.readouterr().out == "small: 0 runs to make\n"


def test_runs_share_their_preparation_and_go_on_if_one_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count = "python -c \"import time; open('count', 'a').write('{seed}'); time.sleep(0.2)\""
    tasks = {"a": {"benchmarks": ["x.jsonl"], "prepare": [count]}}
    methods = {name: {"config": "dapo.yaml"} for name in ("dapo", "meds", "more")}
    study = small(Path(), tasks=tasks, seeds=[1, 2], methods=methods, claims={})
    monkeypatch.setattr(Run, "training", lambda run: ["python", "-c", "import sys; sys.exit('no room')"])
    monkeypatch.setattr(Run, "config", lambda run: None)
    assert main(["small.yaml"]) == 1
    assert Path("count").read_text() in ("12", "21")
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line for line in lines if "failed" in line) == sorted(
        f"{run.name}: failed, no room; all output is in {run.log}" for run in study.runs()
    )


def test_mistakes_take_one_line_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    path = write_study(Path(), **ONE_METHOD)
    for words, line in (
        (["small.yaml", "--only", "a-dapo-9"], "error: --only=a-dapo-9: must be one of a-dapo-1, a-dapo-2"),
        (["none.yaml"], "error: FILE=none.yaml: is not a readable YAML file (No such file"),
        (["small.yaml", "--parallel", "0"], "error: --parallel=0: must be at least 1"),
    ):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert error.startswith(line)
        assert error.count("\n") == 1
    path.write_text(path.read_text().replace("dapo.yaml", "none.yaml"))
    assert main(["small.yaml"]) == 2
    assert "CONFIG=configs/none.yaml: is not a readable YAML file" in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize("trace", ["log", "result"])
def test_a_run_of_other_settings_is_not_gone_on_with(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = "meds train configs/dapo.yaml --actor.max_norm=0.5 --resume"
    if trace == "log":
        run = small(Path(), **ONE_METHOD).runs()[0]
        run.log.parent.mkdir(parents=True)
        run.log.write_text(f"$ {command}\nstep 1\n")
    else:
        run = write_results(small(Path(), **ONE_METHOD), lambda _: 2, command=command)[0]
    assert main(["small.yaml"]) == 2
    assert f"run={run.name}: was started with other settings" in capsys.readouterr().err


def test_one_process_at_a_time_runs_a_study(capsys: pytest.CaptureFixture[str]) -> None:
    write_study(Path(), **ONE_METHOD)
    Path("runs/small").mkdir(parents=True)
    with Path("runs/small/.lock").open("w") as lock:
        assert try_lock(lock.fileno())
        assert main(["small.yaml"]) == 2
    assert "is being run by another process" in capsys.readouterr().err


def test_a_result_names_the_commit_and_whether_code_has_changed(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == (None, None)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "runs.csv").write_text("1")
    (tmp_path / "code.py").write_text("1")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "m"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    (tmp_path / "results" / "runs.csv").write_text("2")
    (tmp_path / "more.txt").write_text("untracked")
    assert commit_of(tmp_path) == (head, False)
    (tmp_path / "code.py").write_text("2")
    assert commit_of(tmp_path) == (head, True)
