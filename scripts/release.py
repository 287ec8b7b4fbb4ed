"""Builds wheel and source distribution, and checks both outside the checkout. Publishes nothing: see `make release`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from email import message_from_string
from pathlib import Path
from zipfile import ZipFile

from meds_openrlhf import __all__ as public_names
from meds_openrlhf import __version__

REPOSITORY = Path(__file__).resolve().parents[1]
UV = Path(sys.executable).with_name("uv")
NEED_TORCH = {"LayerLogitRecorder", "locate_answers", "padded_positions"}
NAMES = [name for name in public_names if name not in NEED_TORCH]
# What a base installation can do, and a part of what it prints.
USES = {
    ("--version",): f"meds {__version__}\n",
    ("--help",): "usage: meds",
    ("memory", "inspect", REPOSITORY / "examples/tour_run"): "20 by preset paper",
    ("report", REPOSITORY / "examples/tour_run", "--output", "report.html"): "report.html",
}
IN_SOURCE = ("README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "configs/cpu/meds.yaml")


def refusal(changes: str, uncommitted: str) -> str | None:
    """Why nothing may be released yet; None if it may. ``uncommitted`` is what `git status --porcelain` prints."""
    if uncommitted:
        return f"the working tree has changes that are not committed:\n{uncommitted.rstrip()}"
    if not re.search(rf"^## {re.escape(__version__)}, \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE):
        return f"CHANGELOG.md has no line `## {__version__}, YYYY-MM-DD`"
    return None


def tracked() -> list[str]:
    """The files of the checkout that git knows and that are there."""
    names = run("git", "-C", REPOSITORY, "ls-files", "-z").split("\0")
    return [name for name in names if (REPOSITORY / name).is_file()]


def build(target: Path) -> tuple[Path, Path]:
    """The wheel and the source distribution in ``target``, made of tracked files with this environment's setuptools."""
    with tempfile.TemporaryDirectory() as copy:
        for name in tracked():
            (Path(copy) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, Path(copy) / name)
        run(UV, "build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--out-dir", target, copy)
    (wheel,), (source,) = target.glob("*.whl"), target.glob("*.tar.gz")
    return wheel, source


def missing_in(wheel: Path, source: Path) -> list[str]:
    """What should be in the two files and is not: the package's files, and those that a user builds from or copies."""
    package = [name for name in tracked() if name.startswith("meds_openrlhf/")]
    with ZipFile(wheel) as packed, tarfile.open(source) as sources:
        in_source = {name.partition("/")[2] for name in sources.getnames()}
        in_wheel = packed.namelist()
        (metadata,) = (name for name in in_wheel if name.endswith(".dist-info/METADATA"))
        about = message_from_string(packed.read(metadata).decode())
    missing = [f"wheel: {name}" for name in package if name not in in_wheel]
    missing += [f"source: {name}" for name in (*IN_SOURCE, *package) if name not in in_source]
    named = (about["Version"], about["Description-Content-Type"]) == (__version__, "text/markdown")
    complete = named and (REPOSITORY / "README.md").read_text().strip() in about.get_payload()
    return missing if complete else [*missing, "wheel: the version or the README in its metadata"]


def try_out(file: Path) -> list[str]:
    """Install ``file`` with what it declares into a fresh environment, use it there, and return what does not work."""
    with tempfile.TemporaryDirectory() as folder:
        python, meds = Path(folder, "bin/python"), Path(folder, "bin/meds")
        run(UV, "venv", "--quiet", "--python", sys.executable, "--allow-existing", folder)
        run(UV, "pip", "install", "--quiet", "--python", python, file)
        run(python, "-c", f"from meds_openrlhf import {', '.join(NAMES)}", cwd=folder)
        uses = {words[0]: text in run(meds, *words, cwd=folder) for words, text in USES.items()}
    return [f"{file.name}: meds {name}" for name, works in uses.items() if not works]


def run(*words: object, cwd: str | None = None) -> str:
    """What a command prints. Raises CalledProcessError if it fails; its errors are shown."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(word) for word in words]
    return subprocess.run(command, cwd=cwd, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> int:
    """Refuse, or build into dist/, check, and print what a maintainer types next."""
    problem = refusal((REPOSITORY / "CHANGELOG.md").read_text(), run("git", "-C", REPOSITORY, "status", "--porcelain"))
    if not problem:
        files = build(REPOSITORY / "dist" / __version__)
        problem = "\n".join([*missing_in(*files), *(line for file in files for line in try_out(file))])
    if problem:
        print(f"release: {problem}", file=sys.stderr)
        return 2
    print(*files, "", "Installed and used in fresh environments. To publish:", sep="\n")
    print(f"  git tag v{__version__} && git push origin v{__version__}\n  uv publish dist/{__version__}/*")
    return 0


if __name__ == "__main__":
    sys.exit(main())
