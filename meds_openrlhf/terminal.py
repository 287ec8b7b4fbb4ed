"""Texts of others on a terminal, where control characters could move the cursor or write the clipboard."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

# C0 and C1 but tab and newline, marks that reorder text, and lone surrogates.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text with control characters as escapes, such as ``\\x1b``."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class PrintableStream:
    """A stream to which everything is written as `printable`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text with control characters as escapes."""
        return self._stream.write(printable(text))

    def writelines(self, lines: Iterable[str]) -> None:
        """Write the lines, each as `write` does."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def prepare_streams() -> None:
    """Let standard output and error take any text, and be there: a shell can close both."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  (until the process ends)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def printable_output(wanted: bool) -> Iterator[None]:
    """Print everything as `printable` in the block, if ``wanted``."""
    with redirect_stdout(PrintableStream(sys.stdout) if wanted else sys.stdout):  # type: ignore[type-var]
        yield
