"""What a user reads while an evaluation goes on: a line for whatever begins and ends, and a bar on a terminal."""

from __future__ import annotations

from typing import Any, TextIO

from tqdm import tqdm


class Progress:
    """Writes to ``stream``; on a terminal a bar stays below the lines: samples, samples per second, pass@1 so far."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: Any = None
        self._drawn = self._right = 0

    def say(self, line: str) -> None:
        """One line of its own."""
        tqdm.write(line, file=self._stream)
        self._stream.flush()

    def begin(self, label: str, total: int, present: int, right: int) -> None:
        """A model's samples are drawn from now on; ``present`` of them are there, ``right`` of those are right."""
        self._drawn, self._right = present, right
        self._bar = tqdm(
            total=total,
            initial=present,
            desc=label,
            unit="sample",
            file=self._stream,
            disable=None,
            dynamic_ncols=True,
            leave=False,
        )

    def add(self, drawn: int, right: int) -> None:
        """So many more are on the disk."""
        self._drawn += drawn
        self._right += right
        if self._bar is not None:
            self._bar.set_postfix_str(f"pass@1 {self._right / self._drawn:.3f}", refresh=False)
            self._bar.update(drawn)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
