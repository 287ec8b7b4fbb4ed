"""How scripts end."""

import argparse
import subprocess
import sys

import pytest

from analysis.command_line import add_drawing_arguments, exit_code_of, positive
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.memory.errors import MemoryCorruptionError


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


@pytest.mark.parametrize("lines", [1, 100_000])
def test_a_reader_that_has_seen_enough_is_no_error(lines: int) -> None:
    script = f"exit_code_of(lambda: [print('row') for _ in range({lines})] and None)"
    program = f"import sys; from analysis.command_line import exit_code_of; sys.stdin.read(); sys.exit({script})"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stdin.close()  # now it prints
    assert process.stderr.read() == b""
    assert process.wait(60) == 0


def test_a_broken_pipe_that_is_not_the_screens_passes_through() -> None:
    program = "from analysis.command_line import exit_code_of\ndef f(): raise BrokenPipeError(32, 'x')\nexit_code_of(f)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert b"BrokenPipeError" in done.stderr


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
        with pytest.raises(argparse.ArgumentTypeError, match="is not an integer above 0"):
            positive(text)
