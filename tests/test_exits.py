"""A reader that has seen enough is no error, and a pipe that is read is left alone."""

import os
import sys

import pytest

from meds_openrlhf.cli import memory
from meds_openrlhf.cli.main import main
from meds_openrlhf.exits import silence_if_closed


def test_a_pipe_that_is_read_is_left_as_it_is_and_what_nobody_reads_goes_nowhere() -> None:
    reader, writer = os.pipe()
    with open(reader, "rb") as read, open(writer, "w") as stream:
        assert not silence_if_closed(stream)
        stream.write("heard")
        stream.flush()
        assert os.read(read.fileno(), 100) == b"heard"
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        stream.write("unheard")
        assert silence_if_closed(stream)
        stream.flush()


def test_a_command_whose_few_lines_nobody_reads_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """They fit into the stream's buffer, so that only its flush meets the closed pipe."""
    reader, writer = os.pipe()
    os.close(reader)

    def verify(*_: object) -> int:
        print("a line")
        return 0

    monkeypatch.setattr(memory, "verify", verify)
    with open(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["memory", "verify", "runs/r"]) == 0
