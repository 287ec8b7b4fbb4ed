"""How scripts end."""

import re
from pathlib import Path
from typing import Annotated

import pytest
from matplotlib.figure import Figure

from analysis.command_line import Command, Finding, exit_code_of
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.options import folders, option, positive


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("--steps", 3, "is not there"), 2, "error: --steps=3: is not there\n"),
        (MemoryCorruptionError("shard-0000/000001.arrow: torn"), 2, "error: shard-0000/000001.arrow: torn\n"),
        (OSError(28, "No space left on device"), 2, "error: [Errno 28] No space left on device\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_what_a_user_can_mend_is_one_line(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    assert exit_code_of(lambda: _raise(error)) == code
    assert capsys.readouterr().err == line


def test_success_and_defects_pass_through() -> None:
    assert exit_code_of(lambda: None) == 0
    with pytest.raises(KeyError):
        exit_code_of(lambda: _raise(KeyError("x")))
    with pytest.raises(OSError, match="bad descriptor"):
        exit_code_of(lambda: _raise(OSError(9, "bad descriptor")))


def analyze(
    run: Annotated[Path, folders("a run", None)], steps: Annotated[int, option("so many", "N", type=positive)] = 7
) -> Finding:
    return Finding(f"{run} {steps}", {"steps": steps}, Figure())


def test_options_that_are_not_given_have_the_functions_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = Command("found", "A question.\n\nMore.", analyze)
    assert command(["meds"]) == command(["dapo", "--steps", "3", "--figure", "f.svg", "--json", "n.json"]) == 0
    assert capsys.readouterr().out == "meds 7\ndapo 3\n"
    assert {path.name for path in tmp_path.iterdir()} == {"found.png", "found.json", "f.svg", "n.json"}
    assert Path("n.json").read_text() == '{\n  "steps": 3\n}\n'
    with pytest.raises(SystemExit):
        command(["--help"])
    assert re.search(r"--steps N +so many \(default: 7\)", capsys.readouterr().out)
    for words in (["--steps", "0"], ["--steps", "1.5"], ["--figure", "f.pdf"]):
        with pytest.raises(SystemExit):
            command(["meds", *words])
    assert "'f.pdf' does not end in .png or .svg" in capsys.readouterr().err
    assert command(["meds", "--json", str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err
