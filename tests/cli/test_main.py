"""The command line's manners."""

import subprocess
import sys

import pytest

from meds_openrlhf.cli.main import main


def test_help_names_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(command in text for command in ("train", "demo", "data"))


def test_a_mistake_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "no-such.yaml"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "meds: CONFIG: 'no-such.yaml' cannot be read (No such file or directory); name a YAML file\n"


def test_subcommands_without_overrides_refuse_stray_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["data", "arithmetic", "--sed", "1"])
    assert "unrecognized arguments: --sed 1" in capsys.readouterr().err


def test_it_starts_quickly_enough_to_be_asked_for_its_version() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "meds_openrlhf.cli.main", "--version"], capture_output=True, text=True
    )
    assert finished.stdout == "meds 0.1.0\n"
