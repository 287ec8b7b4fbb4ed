"""Judge answers in separate processes with hard limits on time and memory.

`9^{9^{9}}` is a short answer, but its computation never finishes and never releases the GIL: in a thread, it would
block the whole engine. So comparisons run in a few other processes. A process that exceeds its time limit is killed and
replaced, and allocations beyond the memory limit fail.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import resource
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

# Wall-clock limit as a multiple of the CPU time limit, in case a busy machine gives a process hardly any CPU time.
PATIENCE = 12.0


class AnswerVerifier:
    """Asks whether an answer is right, in up to ``processes`` processes, which start on demand.

    ``comparison`` is the module that decides: math-verify's, or another with its functions ``equal`` and ``warm_up``.
    The verdict is None if a comparison takes more than ``seconds`` of CPU time (so that load does not change verdicts)
    or more than ``memory`` bytes beyond the process's initial memory. The last ``remembered`` verdicts are cached: an
    answer that uses up its time limit does so only once, even if many threads ask at the same time. Thread-safe.
    """

    def __init__(
        self,
        seconds: float = 5.0,
        processes: int = 4,
        memory: int = 1 << 30,
        remembered: int = 8192,
        comparison: str = "meds_openrlhf.rewards.comparison",
    ) -> None:
        self._start = functools.partial(_Examiner, comparison, seconds, memory)
        self._threads = ThreadPoolExecutor(processes)  # each asks a process of its own
        self._own = threading.local()
        self._lock = threading.Lock()
        self._asked = functools.lru_cache(remembered)(lambda gold, given: self._threads.submit(self._ask, gold, given))

    def equal(self, gold: str, given: str) -> bool | None:
        """Whether the answer ``given`` is right by the label ``gold``; for math-verify, both are LaTeX texts.

        Returns None if the comparison exceeds its limits. Raises RuntimeError if no process can be started, e.g. if
        math-verify is not installed.
        """
        with self._lock:
            verdict = self._asked(gold, given)
        try:
            return verdict.result()
        except RuntimeError:
            self._asked.cache_clear()  # it may start the next time
            raise

    def _ask(self, gold: str, given: str) -> bool | None:
        examiner = getattr(self._own, "examiner", None)
        if examiner is None or not examiner.process.is_alive():
            examiner = self._own.examiner = self._start()
        verdict: bool | None = examiner.ask(gold, given)
        if verdict is None:
            examiner.process.kill()
            examiner.process.join()
        return verdict


class _Examiner:
    """A process that compares answers, and the pipe to it."""

    def __init__(self, comparison: str, seconds: float, memory: int) -> None:
        # Fork from a server that has imported the parsers, so that a replacement does not spend two seconds on imports.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([comparison])
        self._seconds = seconds
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, comparison, seconds, memory), daemon=True)
        self.process.start()
        theirs.close()
        try:
            self._connection.recv()  # when it has finished its imports, which do not count as a question's time
        except (EOFError, OSError):
            raise RuntimeError("a process that checks answers failed to start; its output above says why") from None

    def ask(self, gold: str, given: str) -> bool | None:
        """The verdict; None if the process did not answer in time or died."""
        try:
            self._connection.send((gold, given))
            if self._connection.poll(PATIENCE * self._seconds):
                return bool(self._connection.recv())
        except (EOFError, OSError):
            pass
        return None


def _serve(connection: Connection, comparison: str, seconds: float, memory: int) -> None:
    """The process's main function: answer questions until the pipe closes."""
    judge = importlib.import_module(comparison)
    judge.warm_up()
    # Limit the address space to its present size and ``memory`` bytes.
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    connection.send(None)
    while True:
        try:
            gold, given = connection.recv()
        except EOFError:
            return
        # SIGPROF's default action kills the process: no Python code can run while a large power is computed.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            verdict = bool(judge.equal(gold, given))
        except MemoryError:
            return  # the parser's state may be inconsistent: use a new process
        except Exception:
            # The parsers raise errors of many kinds on model output, and an uncaught error would end this process. A
            # text that math-verify, sympy or a task's scorer cannot process is not the answer.
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send(verdict)
