"""Comparing two math answers in a process of its own, with a time limit that no expression can outlive.

`9^{9^{9}}` is a short answer, and computing it takes for ever without once giving the interpreter's lock back: a thread
that tried would stop the whole engine. So the comparison runs in another process, which is ended when its time is up.
"""

from __future__ import annotations

import multiprocessing
import threading
from multiprocessing.connection import Connection
from typing import Any


class AnswerVerifier:
    """Asks math-verify whether two answers are equal; one that takes longer than ``seconds`` is not.

    The process starts with the first question and again after each that ran out of time. Safe to use from many threads,
    which take turns.
    """

    def __init__(self, seconds: float = 5.0) -> None:
        self._seconds = seconds
        self._turn = threading.Lock()
        self._process: Any = None
        self._connection: Connection | None = None

    def equal(self, gold: str, given: str) -> bool:
        """Whether the LaTeX texts ``gold`` and ``given`` are the same as mathematics."""
        with self._turn:
            connection = self._connection or self._start()
            try:
                connection.send((gold, given))
                if connection.poll(self._seconds):
                    return bool(connection.recv())
            except (EOFError, BrokenPipeError):
                pass  # it died, for want of memory for instance: not an answer that can be checked
            self.close()
            return False

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = self._connection = None

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._connection.recv()  # its imports are done; they do not count as a question's time
        return self._connection


def _serve(connection: Connection) -> None:
    """The other process: answer questions until the pipe closes."""
    from math_verify import parse, verify

    connection.send(True)
    while True:
        try:
            gold, given = connection.recv()
        except EOFError:
            return
        try:
            # math-verify's own limits are signals within Python, which a long computation never lets through.
            verdict = verify(
                parse(f"\\boxed{{{gold}}}", parsing_timeout=None),
                parse(f"\\boxed{{{given}}}", parsing_timeout=None),
                timeout_seconds=None,
            )
        except Exception:
            # Whatever it was: a text that math-verify or sympy cannot digest is not the answer. The parsers raise
            # errors of many kinds on what a model writes, and one that got out would end this process.
            verdict = False
        connection.send(bool(verdict))
