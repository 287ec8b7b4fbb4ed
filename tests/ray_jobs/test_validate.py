"""The lists of checks for real hardware, and what runs them."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from meds_openrlhf.cli.main import SUBCOMMANDS

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "ray_jobs" / "validate"
LISTS = sorted(FOLDER.glob("*.yaml"))


def run(checks: Path, report: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), str(checks), "--report", str(report)],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environment},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_check_says_what_it_proves_and_names_commands_that_exist(path: Path) -> None:
    commands = {module.__name__.rpartition(".")[2] for module in SUBCOMMANDS}
    for check in yaml.safe_load(path.read_text()):
        assert check.keys() == {"name", "proves", "look", "command"}
        assert set(re.findall(r"(?<![-\w])meds (\w+)", check["command"])) <= commands
        for module in re.findall(r"python -m ([\w.]+)", check["command"]):
            assert importlib.util.find_spec(module) is not None
        for file in re.findall(r"\b(?:configs|tests)/[\w./-]+", check["command"]):
            assert (REPOSITORY / file).exists()


def test_a_report_has_all_checks_also_after_one_that_failed(tmp_path: Path) -> None:
    checks = [
        {"name": "first", "proves": "a", "look": "b", "command": "echo one; echo '1%\r2%' >&2; exit 3"},
        {"name": "second", "proves": "c", "look": "d", "command": "false | true"},
        {"name": "third", "proves": "e", "look": "f", "command": "seq 100"},
    ]
    (tmp_path / "list.yaml").write_text(yaml.safe_dump(checks))
    finished = run(tmp_path / "list.yaml", tmp_path / "report.md")
    assert finished.returncode == 1, finished.stderr
    assert finished.stdout.splitlines()[-1] == f"2 of 3 failed; {tmp_path}/report.md"
    report = (tmp_path / "report.md").read_text()
    assert re.findall(r"^## (.*), 0.0 min", report, re.MULTILINE) == [
        "1. first: FAILED, exit code 3",
        "2. second: FAILED, exit code 1",
        "3. third: ok",
    ]
    assert "    one\n    2%\n" in report
    assert "Proves: e\n\nLook at: f\n\n    $ seq 100\n    61\n" in report


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_list_for_machines_without_a_gpu(tmp_path: Path) -> None:
    config = str(REPOSITORY / "configs" / "cpu" / "meds.yaml")
    finished = run(FOLDER / "cpu.yaml", tmp_path / "report.md", FOLDER=str(tmp_path), CONFIG=config)
    assert finished.returncode == 0, (tmp_path / "report.md").read_text()
