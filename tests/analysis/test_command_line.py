"""How scripts end."""

import argparse

import pytest

from analysis.command_line import add_drawing_arguments, exit_code_of, positive
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.memory.errors import MemoryCorruptionError


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("--steps", 3, "is not there"), 2, "error: --steps: 3 is not there\n"),
        (MemoryCorruptionError("shard-0000/000001.arrow: torn"), 2, "error: shard-0000/000001.arrow: torn\n"),
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


def test_drawing_arguments() -> None:
    parser = argparse.ArgumentParser()
    add_drawing_arguments(parser)
    assert vars(parser.parse_args([])) == {"seed": 0, "response_characters": None}
    assert vars(parser.parse_args(["--seed", "3", "--response-characters", "9"])) == {
        "seed": 3,
        "response_characters": 9,
    }
    assert positive("12") == 12
    for text in ("0", "-1", "1.5", "many"):
        with pytest.raises(argparse.ArgumentTypeError, match="is no whole number above 0"):
            positive(text)
