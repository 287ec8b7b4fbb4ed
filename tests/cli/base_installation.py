"""The commands as `pip install .` leaves them, without any extra or with some."""

import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[2]


def packages(*extras: str) -> set[str]:
    """Distributions that the project needs, directly or not, with these extras."""
    found: set[str] = set()
    waiting = [(Requirement(line), ("", *extras)) for line in distribution("meds-openrlhf").requires or []]
    while waiting:
        requirement, asked = waiting.pop()
        applies = requirement.marker is None or any(requirement.marker.evaluate({"extra": one}) for one in asked)
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if applies and name not in found:
            found.add(name)
            waiting += [(Requirement(line), ("",)) for line in distribution(name).requires or []]
    return found


def make_site(folder: Path, *extras: str) -> Path:
    """A folder to import from that holds these packages alone, as links to the installed ones."""
    for name in packages(*extras):
        for file in distribution(name).files or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).is_symlink():
                (folder / top).symlink_to(distribution(name).locate_file(top))
    (folder / "meds_openrlhf").symlink_to(REPOSITORY / "meds_openrlhf")
    return folder


def run_program(site: Path, program: str, cwd: Path, lines: str = "") -> subprocess.CompletedProcess[str]:
    """A Python program that imports from the standard library and ``site`` only, and reads ``lines``."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "RAY_"))}
    environment["PYTHONPATH"] = str(site)
    command = [sys.executable, "-S", "-c", program]
    return subprocess.run(command, cwd=cwd, env=environment, input=lines, capture_output=True, text=True, timeout=100)
