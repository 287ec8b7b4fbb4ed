"""A reader that has seen enough is no error."""

import os
import sys

import pytest

from meds_openrlhf.cli import memory
from meds_openrlhf.cli.main import main
from meds_openrlhf.exits import silence_if_closed


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
