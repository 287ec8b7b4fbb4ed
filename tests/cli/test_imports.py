"""Commands answer at once: what a command imports before its first word, and before it refuses what is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.base_installation import REPOSITORY

HEAVY = {"torch", "transformers", "deepspeed", "vllm", "sklearn", "hdbscan"}
PROGRAM = """
import sys
from meds_openrlhf.cli.main import main
for line in sys.stdin:
    try:
        code = main(line.split())
    except SystemExit as exit:
        code = exit.code
    print("exit code:", code)
print(*sorted(name for name in sys.modules if "." not in name))
"""


def imported_by(commands: list[list[str]], cwd: Path) -> tuple[list[int], set[str]]:
    """The exit codes of `meds` with each of ``commands``, and the packages that one process has imported for all."""
    lines = "".join(" ".join(words) + "\n" for words in commands)
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=lines, cwd=cwd, capture_output=True, text=True, timeout=100
    )
    assert finished.returncode == 0, finished.stderr
    *printed, modules = finished.stdout.splitlines()
    return [int(line.split()[2]) for line in printed if line.startswith("exit code: ")], set(modules.split())


def test_help_needs_the_standard_library_alone(tmp_path: Path) -> None:
    commands = ["train", "eval", "plan", "demo", "data", "memory", "report", "track", "data prepare"]
    codes, modules = imported_by([[*command.split(), "--help"] for command in ("", *commands)], tmp_path)
    assert set(codes) == {0}
    assert modules & {*HEAVY, "numpy", "pyarrow", "ray"} == set()


@pytest.mark.needs("wrapt")
def test_refusals_of_a_file_import_no_model_code(tmp_path: Path) -> None:
    config = str(REPOSITORY / "configs/cpu/meds.yaml")
    refused = ["--meds.penalty.alfa=3", "--meds.memory.shards=0", "--train.num_episode=3"]
    codes, modules = imported_by([["train", config, "--meds.run_dir=run", word] for word in refused], tmp_path)
    assert codes == [2, 2, 2]
    assert modules & HEAVY == set()
