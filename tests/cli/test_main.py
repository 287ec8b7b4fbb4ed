"""The command line: help, exit codes, imports."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import shtab

from meds_openrlhf import __version__
from meds_openrlhf.cli import data, memory
from meds_openrlhf.cli.main import SHELLS, main
from meds_openrlhf.memory.errors import MemoryBusyError, MemoryCorruptionError
from meds_openrlhf.terminal import silence_if_closed
from tests.cli.base_installation import REPOSITORY
from tests.cli.conftest import Meds
from tests.failing import failing

HEAVY = {"torch", "transformers", "openrlhf", "deepspeed", "vllm", "sklearn", "hdbscan"}
PROGRAM = """
import sys, meds_openrlhf.config
from meds_openrlhf.cli.main import main
for line in sys.stdin:
    try:
        code = main(line.split())
    except SystemExit as exit:
        code = exit.code
    print("exit code:", code)
print(*sorted(name for name in sys.modules if "." not in name))
"""


def imported_by(commands: list[list[str]], cwd: Path) -> tuple[str, list[int], set[str]]:
    """What `meds` with each of ``commands`` prints, its exit codes, and the packages that one process has imported."""
    lines = "".join(" ".join(words) + "\n" for words in commands)
    command = [sys.executable, "-c", PROGRAM]
    finished = subprocess.run(command, input=lines, cwd=cwd, capture_output=True, text=True, timeout=100)
    assert finished.returncode == 0, finished.stderr
    *printed, modules = finished.stdout.splitlines()
    codes = [int(line.split()[2]) for line in printed if line.startswith("exit code: ")]
    return finished.stdout, codes, set(modules.split())


def test_the_configuration_help_and_version_need_the_standard_library_alone(tmp_path: Path) -> None:
    commands = ["train", "eval", "plan", "demo", "data", "memory", "report", "track", "data prepare"]
    commands += [f"memory {action}" for action in ("inspect", "verify", "replay")]
    words = [["--help"], ["--version"], *[[*command.split(), "--help"] for command in commands]]
    printed, codes, modules = imported_by(words, tmp_path)
    assert set(codes) == {0}
    assert f"meds {__version__}\n" in printed
    assert all(text in printed for text in ("train", "demo", "data", "memory", "folder", "RUN@50"))
    assert modules & {*HEAVY, "numpy", "pyarrow", "ray", "matplotlib"} == set()


@pytest.mark.needs("wrapt")
def test_refusals_of_a_file_import_no_model_code(tmp_path: Path) -> None:
    config = str(REPOSITORY / "configs/cpu/meds.yaml")
    refused = ["--meds.penalty.alfa=3", "--meds.memory.shards=0", "--train.num_episode=3"]
    _, codes, modules = imported_by([["train", config, "--meds.run_dir=run", word] for word in refused], tmp_path)
    assert codes == [2, 2, 2]
    assert modules & HEAVY == set()


class OfWorker(Exception):
    """As Ray wraps an error."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "runs/r/memory/shard-0000/000003.arrow: step 7 could not be written; nothing was stored"),
        MemoryCorruptionError("runs/r/memory/shard-0000: holds 0 of 9 rows"),
        MemoryBusyError("runs/r/memory/shard-0000: is being written by process 7 on node-3"),
        IsADirectoryError(errno.EISDIR, "Is a directory", "runs"),
        BrokenPipeError(),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/nowhere/at/all"),
        OfWorker(FileExistsError(errno.EEXIST, "File exists", "/tmp/torch_extensions")),
    ],
)
def test_errors_of_the_user_are_one_line_and_defects_a_traceback(
    error: Exception, meds: Meds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "make_arithmetic", failing(error))
    if isinstance(error, (BrokenPipeError, FileNotFoundError, OfWorker)):  # no success, and a mistake in the program
        with pytest.raises(type(error)):
            meds("data", "arithmetic")
        return
    assert meds.refusal("data", "arithmetic") == str(error)


def test_a_mistake_is_one_line_and_exit_code_2(meds: Meds, capsys: pytest.CaptureFixture[str]) -> None:
    unreadable = "CONFIG=no-such.yaml: is not a readable YAML file (No such file or directory)."
    assert meds.refusal("train", "no-such.yaml") == unreadable
    with pytest.raises(SystemExit, match="2"):  # subcommands without overrides refuse stray words
        meds("data", "arithmetic", "--sed", "1")
    assert "unrecognized arguments: --sed 1" in capsys.readouterr().err


def test_an_unknown_command_is_named_with_the_nearest(meds: Meds, capsys: pytest.CaptureFixture[str]) -> None:
    for word, line in (("trian", "Did you mean train?"), ("x", "Choose one of train, eval, plan, doctor, ")):
        with pytest.raises(SystemExit, match="2"):
            meds(word, "configs/cpu/meds.yaml")
        assert f"meds: error: COMMAND={word}: unknown command. {line}" in capsys.readouterr().err


def test_a_shell_completes_commands_options_and_files(tmp_path: Path) -> None:
    script = subprocess.run([sys.executable, "-m", "meds_openrlhf.cli.main", "--print-completion", "bash"],
                            capture_output=True, text=True, check=True).stdout  # fmt: skip
    (tmp_path / "completion").write_text(script)
    (tmp_path / "rollouts").mkdir()

    def completed(*words: str) -> list[str]:
        line = f"source completion; COMP_WORDS=({' '.join(words)} ''); COMP_CWORD={len(words) - 1}; _shtab_meds"
        ended = subprocess.run(["bash", "-c", f'{line}; printf "%s\\n" "${{COMPREPLY[@]}}"'],
                               cwd=tmp_path, capture_output=True, text=True, check=True)  # fmt: skip
        return ended.stdout.split()

    assert set(SHELLS) == {*shtab.SUPPORTED_SHELLS}
    assert completed("meds", "rep") == ["report"]
    assert completed("meds", "plan", "--js") == ["--json"]
    assert "rollouts" in completed("meds", "memory", "inspect", "rol")


def test_a_command_whose_few_lines_nobody_reads_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """They fit into the stream's buffer, so that only its flush meets the closed pipe."""
    reader, writer = os.pipe()
    with open(writer, "w", closefd=False) as heard:
        assert not silence_if_closed(heard)
    os.close(reader)

    def verify(*_: object) -> int:
        print("a line")
        return 0

    monkeypatch.setattr(memory, "verify", verify)
    with open(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["memory", "verify", "runs/r"]) == 0
