"""Detect in a separate thread that a call to W&B's client blocks for too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE_SECONDS = 20.0


class Patience:
    """Calls ``lost`` if an answer is late by ``seconds``, ``there`` at the first answer, initially and after a loss."""

    def __init__(self, seconds: float, lost: Callable[[], None], there: Callable[[], None]) -> None:
        self._seconds, self._lost, self._there = seconds, lost, there
        self._condition = threading.Condition()
        self._since: float | None = None
        self._is_there: bool | None = None  # not known yet
        threading.Thread(target=self._watch, daemon=True).start()

    def expect(self) -> None:
        """Start to wait for an answer, unless already waiting."""
        with self._condition:
            if self._since is None:
                self._since = time.monotonic()
            self._condition.notify()

    def answered(self) -> None:
        """Report that the answer has arrived."""
        with self._condition:
            self._since, was_there, self._is_there = None, self._is_there, True
            if not was_there:
                self._there()

    def _watch(self) -> None:
        while True:
            with self._condition:
                due = None if self._since is None or self._is_there is False else self._since + self._seconds
                if due is None or (left := due - time.monotonic()) > 0:
                    self._condition.wait(None if due is None else left)
                    continue
                self._is_there = False
                self._lost()  # keep the lock, or an answer could be reported before the silence
