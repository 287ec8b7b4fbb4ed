"""What the forge reads in .github/ fits the Makefile, pyproject.toml and the command line."""

import os
import re
from pathlib import Path
from typing import Any

import yaml
from packaging.specifiers import SpecifierSet

REPOSITORY = Path(__file__).parents[1]
FORGE = REPOSITORY / ".github"
MAKEFILE = (REPOSITORY / "Makefile").read_text()
JOBS: dict[str, Any] = yaml.safe_load((FORGE / "workflows/ci.yml").read_text())["jobs"]


def commands() -> list[str]:
    """What the steps run, without the matrix's values."""
    lines = [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step]
    return [re.sub(r"\$\{\{.*?\}\}", "", line) for line in lines]


def test_every_step_is_there_to_run() -> None:
    local = [line for line in (REPOSITORY / ".ci/run").read_text().splitlines() if line.startswith("make ")]
    words = {word for line in [*commands(), *local] if line.startswith("make") for word in line.split()[1:]}
    targets = {word for word in words if re.fullmatch("[a-z][a-z-]*", word)}
    assert targets == {"test-base", "setup", "lint", "types", "test"}
    for target in targets:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target
    assert ".ci/run" in commands()
    assert os.access(REPOSITORY / ".ci/run", os.X_OK)


def test_it_runs_on_every_python_that_the_project_allows() -> None:
    (allowed,) = re.findall(r'^requires-python = "(.*)"', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
    minors = [f"3.{minor}" for minor in range(30) if SpecifierSet(allowed).contains(f"3.{minor}.1")]
    assert JOBS["base"]["strategy"]["matrix"]["python"] == minors
    (step,) = (one for one in JOBS["whole"]["steps"] if "python-version" in one.get("with", {}))
    own = step["with"]["python-version"]
    assert f"PYTHON ?= python{own}\n" in MAKEFILE
    checked = re.findall(r'make types MYPY_ARGS="--python-version (.*?)"', "\n".join(commands()))
    assert sorted([*checked, own]) == minors  # .ci/run checks the types for its own


def test_a_job_may_only_read_and_ends() -> None:
    workflow = yaml.safe_load((FORGE / "workflows/ci.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["cancel-in-progress"] is True
    assert all(0 < job["timeout-minutes"] <= 120 and "permissions" not in job for job in JOBS.values())
    used = [step["uses"] for job in JOBS.values() for step in job["steps"] if "uses" in step]
    assert [one for one in used if not re.fullmatch(r"actions/[a-z-]+@v\d+", one)] == []
    files = {step["with"]["cache-dependency-path"] for job in JOBS.values() for step in job["steps"] if "with" in step}
    assert all((REPOSITORY / name).is_file() for name in files)
