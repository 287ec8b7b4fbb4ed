"""The command line's manners."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from meds_openrlhf import __version__
from meds_openrlhf.cli import data
from meds_openrlhf.cli.main import main
from meds_openrlhf.memory.errors import MemoryBusyError, MemoryCorruptionError


def test_help_names_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(command in text for command in ("train", "demo", "data", "memory"))


def test_a_mistake_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "no-such.yaml"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "meds: CONFIG=no-such.yaml: not a readable YAML file (No such file or directory).\n"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "runs/r/memory/shard-0000/000003.arrow: step 7 could not be written; nothing was stored"),
        MemoryCorruptionError("runs/r/memory/shard-0000: holds 0 of 9 rows"),
        MemoryBusyError("runs/r/memory/shard-0000: is being written by process 7 on node-3"),
    ],
)
def test_what_ends_a_run_and_can_be_mended_is_one_line(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr(data, "make_arithmetic", fail)
    assert main(["data", "arithmetic"]) == 2
    assert capsys.readouterr().err == f"meds: {error}\n"


def test_a_broken_connection_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(data, "make_arithmetic", fail)
    with pytest.raises(BrokenPipeError):
        main(["data", "arithmetic"])


def test_a_mistake_in_the_program_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "make_arithmetic", lambda *_: Path("/nowhere/at/all").stat())
    with pytest.raises(FileNotFoundError):
        main(["data", "arithmetic"])


def test_subcommands_without_overrides_refuse_stray_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["data", "arithmetic", "--sed", "1"])
    assert "unrecognized arguments: --sed 1" in capsys.readouterr().err


def test_it_starts_quickly_enough_to_be_asked_for_its_version() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "meds_openrlhf.cli.main", "--version"], capture_output=True, text=True
    )
    assert finished.stdout == f"meds {__version__}\n"
