"""Texts of others cannot steer a terminal, and any text can be printed."""

import subprocess
import sys

import pytest

from meds_openrlhf.terminal import PrintableStream, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ä 数\tand\n", "plain ä 数\tand\n"),
        ("\x1b]52;c;cHduZWQ=\x07", "\\x1b]52;c;cHduZWQ=\\x07"),
        ("a\rb\x9bc", "a\\rb\\x9bc"),
        ("\u202eright to left", "\\u202eright to left"),
        ("half \ud800", "half \\ud800"),
    ],
)
def test_control_characters_are_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_stream_shows_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    print("\x1b[2J", file=PrintableStream(sys.stdout))
    assert capsys.readouterr().out == "\\x1b[2J\n"


@pytest.mark.parametrize("shell", ["{} >&-", "{} 2>&- >&-", "{} | true", "{} > /dev/null", "PYTHONIOENCODING=ascii {}"])
@pytest.mark.parametrize("words", ["--help", "memory inspect 'no such ä'"])
def test_closed_streams_and_any_encoding_end_without_a_traceback(shell: str, words: str) -> None:
    command = f"{sys.executable} -m meds_openrlhf.cli.main {words}"
    ended = subprocess.run(["bash", "-c", shell.format(command)], capture_output=True, text=True)
    assert ended.returncode == (0 if words == "--help" or "| true" in shell else 2)
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
