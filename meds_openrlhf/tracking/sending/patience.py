"""Notices from beside when W&B's client waits too long: it blocks whoever calls it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE_SECONDS = 20.0


class Patience:
    """Calls ``lost`` once when an answer is due for ``seconds``, and ``there`` with the first one and the one after."""

    def __init__(self, seconds: float, lost: Callable[[], None], there: Callable[[], None]) -> None:
        self._seconds, self._lost, self._there = seconds, lost, there
        self._condition = threading.Condition()
        self._since: float | None = None
        self._is_there: bool | None = None  # not known yet
        threading.Thread(target=self._watch, daemon=True).start()

    def expect(self) -> None:
        """An answer is due from now on, if none was yet."""
        with self._condition:
            if self._since is None:
                self._since = time.monotonic()
            self._condition.notify()

    def answered(self) -> None:
        """The answer is there."""
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
                self._lost()  # holding the lock, or an answer could be told before the silence
