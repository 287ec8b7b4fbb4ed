"""The lists of checks for real hardware, and what runs them."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from meds_openrlhf.cli.main import SUBCOMMANDS, main
from meds_openrlhf.training.start import placing
from tests.placement.clusters import found_shape
from tests.processes import is_alive

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "ray_jobs" / "validate"
LISTS = sorted(FOLDER.glob("*.yaml"))


def run(checks: Path, report: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    folder = ["--folder", str(report.with_name("run"))]
    command = [sys.executable, str(FOLDER / "run.py"), str(checks), "--report", str(report), *folder]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environment}
    return subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True)


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_check_says_what_it_proves_and_names_commands_that_exist(path: Path) -> None:
    for check in yaml.safe_load(path.read_text()):
        assert check.keys() - {"minutes"} == {"name", "proves", "look", "command"}
        assert set(re.findall(r"(?<![-\w])meds (\w+)", check["command"])) <= SUBCOMMANDS.keys()
        for module in re.findall(r"python -m ([\w.]+)", check["command"]):
            assert importlib.util.find_spec(module) is not None
        for file in re.findall(r"\b(?:configs|tests)/[\w./-]+", check["command"]):
            assert (REPOSITORY / file).exists()


@pytest.mark.needs("wrapt")
def test_the_runs_for_one_gpu_are_accepted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(placing, "find_shape", found_shape)
    text = (FOLDER / "one_gpu.yaml").read_text().replace("\n", " ").replace('"', "")
    text = text.replace(";", " ;").replace("$RUN/1.7b", "Qwen/Qwen3-1.7B").replace("$RUN/7b", "Qwen/Qwen2.5-Math-7B")
    runs = re.findall(r"(configs/\S+\.yaml)((?:\s+--[\w.]+=\S+)+)", text)
    assert len(runs) == 6
    for config, flags in runs:
        status = main(["plan", config, *flags.split(), "--cluster=1x1", "--gpu-memory=79.6"])
        assert status == 0, (config, flags, capsys.readouterr())


def test_report_has_all_checks_although_one_fails_or_hangs(tmp_path: Path) -> None:
    hangs = f"echo began; sleep 300 & echo $! > {tmp_path}/pid; wait"
    checks = [
        {"name": "first", "proves": "a", "look": "b", "command": "echo one; echo '1%\r2%' >&2; exit 3"},
        {"name": "second", "proves": "c", "look": "d", "command": "false | true"},
        {"name": "third", "proves": "e", "look": "f", "command": "seq 100"},
        {"name": "hangs", "proves": "g", "look": "h", "command": hangs, "minutes": 0.05},
    ]
    (tmp_path / "list.yaml").write_text(yaml.safe_dump(checks))
    finished = run(tmp_path / "list.yaml", tmp_path / "report.md")
    assert finished.returncode == 1, finished.stderr
    assert finished.stdout.splitlines()[-1] == f"3 of 4 failed; {tmp_path}/report.md"
    assert "    | began\n" in finished.stdout
    report = (tmp_path / "report.md").read_text()
    ends = ["1. first: FAILED, exit code 3", "2. second: FAILED, exit code 1", "3. third: ok"]
    ends.append("4. hangs: FAILED, ended after 0.05 minutes")
    assert re.findall(r"^## (.*), \d\.\d min", report, re.MULTILINE) == ends
    assert not is_alive(int((tmp_path / "pid").read_text()))  # it ends with all that it started
    assert "    one\n    2%\n" in report
    memory = r"Node: [\d.]+ to [\d.]+ GB of memory in use."
    assert re.search(rf"Proves: e\n\nLook at: f\n\n{memory}\n\n    \$ seq 100\n    61\n", report)


def test_checks_are_chosen_by_number_and_starts_have_own_folders(tmp_path: Path) -> None:
    check = {"proves": "", "look": "", "command": 'echo x >> "$RUN/runs" && [ -s "$RUN/runs" ]'}
    (tmp_path / "list.yaml").write_text(yaml.safe_dump([{**check, "name": name} for name in "abc"]))
    command = [sys.executable, str(FOLDER / "run.py"), "list.yaml", "--only"]
    for number, name in ((1, "a"), (3, "c")):
        finished = subprocess.run([*command, str(number)], cwd=tmp_path, capture_output=True, text=True)
        assert finished.stdout.splitlines()[0] == f"{number}/3 {name}"
        assert finished.stdout.endswith("0 of 1 failed; validation.md\n")
    assert [folder.joinpath("runs").read_text() for folder in (tmp_path / "runs").iterdir()] == ["x\n", "x\n"]
    refused = subprocess.run([*command, "4"], cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "there is no check 4: the list has 3" in refused.stderr


@pytest.mark.slow
def test_the_list_for_machines_without_a_gpu(tmp_path: Path) -> None:
    config = str(REPOSITORY / "configs" / "cpu" / "meds.yaml")
    finished = run(FOLDER / "cpu.yaml", tmp_path / "report.md", CONFIG=config)
    assert finished.returncode == 0, (tmp_path / "report.md").read_text()
