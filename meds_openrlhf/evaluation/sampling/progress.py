"""Console output of an evaluation: a line for each event, and a progress bar or a line per tenth of the samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from tqdm import tqdm


class Progress:
    """Writes to ``stream``; on a terminal, a bar below the lines shows samples, samples per second and pass@1 so far.

    In a log file, a line is written at every tenth of the samples instead.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def say(self, line: str) -> None:
        """Write a line."""
        tqdm.write(line, file=self._stream)
        self._stream.flush()

    @contextmanager
    def of(self, label: str, total: int, present: int, right: int) -> Iterator[None]:
        """Show a model's progress; ``present`` of ``total`` samples exist, and ``right`` of those are right."""
        self._label, self._total, self._drawn, self._right = label, total, present, right
        look = {"desc": label, "unit": "sample", "file": self._stream, "dynamic_ncols": True, "leave": False}
        with tqdm(total=total, initial=present, disable=None, **look) as self._bar:
            yield

    def add(self, drawn: int, right: int) -> None:
        """Report ``drawn`` more samples on disk, of which ``right`` are right."""
        tenths = 10 * self._drawn // self._total
        self._drawn += drawn
        self._right += right
        accuracy = self._right / self._drawn
        if not self._bar.disable:
            self._bar.set_postfix_str(f"pass@1 {accuracy:.3f}", refresh=False)
            self._bar.update(drawn)
        elif 10 * self._drawn // self._total > tenths:
            self.say(f"{self._label}: {self._drawn} of {self._total} samples, pass@1 {accuracy:.2f}")
