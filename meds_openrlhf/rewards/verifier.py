"""Judge answers in separate processes with hard limits on time and memory.

`9^{9^{9}}` is a short answer, but its computation never finishes and never releases the GIL: in a thread, it would
block the whole engine. So comparisons run in a few other processes. A process that exceeds its time limit is killed and
replaced, and allocations beyond the memory limit fail.
"""

from __future__ import annotations

import importlib
import multiprocessing
import resource
import signal
import threading
from collections import OrderedDict
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path

COMPARISON = "meds_openrlhf.rewards.comparison"
# Wall-clock limit as a multiple of the CPU time limit, in case a busy machine gives a process hardly any CPU time.
PATIENCE = 12.0


class AnswerVerifier:
    """Asks whether an answer is right, in up to ``processes`` processes, which start on demand.

    ``comparison`` is the module that decides: math-verify's, or another with its functions ``equal`` and ``warm_up``.
    The verdict is False if a comparison takes more than ``seconds`` of CPU time (so that load does not change verdicts)
    or more than ``memory`` bytes beyond the process's initial memory. The last ``remembered`` verdicts are cached: an
    answer that uses up its time limit does so only once, even if many threads ask at the same time. Thread-safe.
    """

    def __init__(
        self,
        seconds: float = 5.0,
        processes: int = 4,
        memory: int = 1 << 30,
        remembered: int = 8192,
        comparison: str = COMPARISON,
    ) -> None:
        self._seconds, self._memory, self._remembered = seconds, memory, remembered
        self._comparison = comparison
        self._turns = threading.Semaphore(processes)
        self._lock = threading.Lock()
        self._idle: list[_Examiner] = []
        self._all: set[_Examiner] = set()
        self._verdicts: OrderedDict[tuple[str, str], Future[bool | None]] = OrderedDict()

    def equal(self, gold: str, given: str) -> bool:
        """Whether the answer ``given`` is right by the label ``gold``; for math-verify, both are LaTeX texts.

        Raises RuntimeError if no process can be started, e.g. if math-verify is not installed.
        """
        return bool(self.verdict(gold, given))

    def verdict(self, gold: str, given: str) -> bool | None:
        """Like `equal`, but None for a comparison that exceeded its limits."""
        verdict, mine = self._claim((gold, given))
        if mine:
            try:
                verdict.set_result(self._ask(gold, given))
            except BaseException as error:  # other threads wait for this verdict, so every error must reach them
                with self._lock:
                    self._verdicts.pop((gold, given), None)
                verdict.set_exception(error)
        return verdict.result()

    def close(self) -> None:
        """Kill all processes; comparisons in progress return False or raise."""
        with self._lock:
            ended, self._all, self._idle = self._all, set(), []
        for examiner in ended:
            examiner.end()

    def _claim(self, question: tuple[str, str]) -> tuple[Future[bool | None], bool]:
        """The question's verdict, and whether this thread has to compute it."""
        with self._lock:
            known = self._verdicts.get(question)
            if known is not None:
                self._verdicts.move_to_end(question)
                return known, False
            verdict = self._verdicts[question] = Future[bool | None]()
            if len(self._verdicts) > self._remembered:
                self._verdicts.popitem(last=False)
            return verdict, True

    def _ask(self, gold: str, given: str) -> bool | None:
        with self._turns:
            examiner, verdict = self._take(), None
            try:
                verdict = examiner.ask(gold, given)
            finally:
                self._give_back(examiner, usable=verdict is not None)
            return verdict

    def _take(self) -> _Examiner:
        """An idle process, or a new process; the semaphore limits their number."""
        with self._lock:
            while self._idle:
                examiner = self._idle.pop()
                if examiner.alive:
                    return examiner
                self._all.discard(examiner)  # killed while idle, e.g. by the OOM killer
            examiner = _Examiner(self._comparison, self._seconds, self._memory)
            self._all.add(examiner)
            return examiner

    def _give_back(self, examiner: _Examiner, usable: bool) -> None:
        with self._lock:
            if usable and examiner in self._all:
                self._idle.append(examiner)
                return
            self._all.discard(examiner)
        examiner.end()


class _Examiner:
    """A process that compares answers, and the pipe to it."""

    def __init__(self, comparison: str, seconds: float, memory: int) -> None:
        # Fork from a server that has imported the parsers, so that a replacement does not spend two seconds on imports.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([comparison])
        self._seconds = seconds
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, comparison, seconds, memory), daemon=True)
        self._process.start()
        theirs.close()
        self._ready = False

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return bool(self._process.is_alive())

    def ask(self, gold: str, given: str) -> bool | None:
        """The verdict; None if the process did not answer in time or died."""
        if not self._ready:
            self._wait_until_ready()
        try:
            self._connection.send((gold, given))
            if self._connection.poll(PATIENCE * self._seconds):
                return bool(self._connection.recv())
        except (EOFError, OSError):
            pass
        return None

    def _wait_until_ready(self) -> None:
        """Wait until the process has finished its imports, which do not count as a question's time."""
        try:
            self._connection.recv()
        except (EOFError, OSError):
            raise RuntimeError("a process that checks answers failed to start; its output above says why") from None
        self._ready = True

    def end(self) -> None:
        """Kill the process and wait for its end."""
        self._process.kill()
        self._process.join()


def _serve(connection: Connection, comparison: str, seconds: float, memory: int) -> None:
    """The process's main function: answer questions until the pipe closes."""
    judge = importlib.import_module(comparison)
    judge.warm_up()
    _limit_memory(memory)
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


def _limit_memory(extra: int) -> None:
    """Limit the process's address space to its current size plus ``extra`` bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + extra
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
