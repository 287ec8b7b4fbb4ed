"""Comparing math answers in processes of their own, within limits that no expression can outlive.

`9^{9^{9}}` is a short answer, and computing it takes for ever without once giving the interpreter's lock back: a thread
that tried would stop the whole engine. So comparisons run in a few other processes; one whose time is up is ended and
replaced, and one that asks for too much memory is refused it.
"""

from __future__ import annotations

import multiprocessing
import resource
import signal
import threading
from collections import OrderedDict
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path

COMPARISON = "meds_openrlhf.rewards.comparison"
# Where a process gets so little of a busy machine that its own time hardly passes.
PATIENCE = 12.0


class AnswerVerifier:
    """Asks math-verify whether two answers are equal, in up to ``processes`` processes, which start when needed.

    A question that takes a process more than ``seconds`` of its own time (so a busy machine changes no verdict), or
    more than ``memory`` bytes beyond what it starts with, is answered with no. The last ``remembered`` verdicts are
    kept: an answer that costs its whole time limit costs it once, also when many threads ask at the same time. Safe to
    use from many threads.
    """

    def __init__(self, seconds: float = 5.0, processes: int = 4, memory: int = 1 << 30, remembered: int = 8192) -> None:
        self._seconds, self._memory, self._remembered = seconds, memory, remembered
        self._turns = threading.Semaphore(processes)
        self._lock = threading.Lock()
        self._idle: list[_Examiner] = []
        self._all: set[_Examiner] = set()
        self._verdicts: OrderedDict[tuple[str, str], Future[bool]] = OrderedDict()

    def equal(self, gold: str, given: str) -> bool:
        """Whether the LaTeX texts ``gold`` and ``given`` are the same as mathematics.

        Raises RuntimeError where no process can be started, as without math-verify.
        """
        verdict, mine = self._claim((gold, given))
        if mine:
            try:
                verdict.set_result(self._ask(gold, given))
            except BaseException as error:  # whatever it is, the other threads wait for this verdict
                with self._lock:
                    self._verdicts.pop((gold, given), None)
                verdict.set_exception(error)
        return verdict.result()

    def close(self) -> None:
        """End all processes; questions that are being answered are answered with no, or fail."""
        with self._lock:
            ended, self._all, self._idle = self._all, set(), []
        for examiner in ended:
            examiner.end()

    def _claim(self, question: tuple[str, str]) -> tuple[Future[bool], bool]:
        """The question's verdict, and whether it is this thread that has to find it."""
        with self._lock:
            known = self._verdicts.get(question)
            if known is not None:
                self._verdicts.move_to_end(question)
                return known, False
            verdict = self._verdicts[question] = Future[bool]()
            if len(self._verdicts) > self._remembered:
                self._verdicts.popitem(last=False)
            return verdict, True

    def _ask(self, gold: str, given: str) -> bool:
        with self._turns:
            examiner, verdict = self._take(), None
            try:
                verdict = examiner.ask(gold, given)
            finally:
                self._give_back(examiner, usable=verdict is not None)
            return bool(verdict)

    def _take(self) -> _Examiner:
        """An idle process, or a new one: whoever has a turn finds room for it."""
        with self._lock:
            while self._idle:
                examiner = self._idle.pop()
                if examiner.alive:
                    return examiner
                self._all.discard(examiner)  # killed while it waited, for want of the machine's memory for instance
            examiner = _Examiner(self._seconds, self._memory)
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
    """One process that compares answers, and the pipe to it."""

    def __init__(self, seconds: float, memory: int) -> None:
        # Forked from one that has imported the parsers: a process that is replaced costs no two seconds of imports.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([COMPARISON])
        self._seconds = seconds
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, seconds, memory), daemon=True)
        self._process.start()
        theirs.close()
        self._ready = False

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return bool(self._process.is_alive())

    def ask(self, gold: str, given: str) -> bool | None:
        """The verdict; None from a process that did not give one in time, or died of the question."""
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
        """Until its imports are done: they do not count as a question's time."""
        try:
            self._connection.recv()
        except (EOFError, OSError):
            raise RuntimeError(
                "a process that checks answers ended while it started; what it wrote above says why"
            ) from None
        self._ready = True

    def end(self) -> None:
        """Kill the process and wait for its end."""
        self._process.kill()
        self._process.join()


def _serve(connection: Connection, seconds: float, memory: int) -> None:
    """The other process: answer questions until the pipe closes."""
    from meds_openrlhf.rewards.comparison import equal

    equal(r"\frac{1}{2}", "0.5")  # what the parsers build with their first text is no question's time or memory
    _limit_memory(memory)
    connection.send(None)
    while True:
        try:
            gold, given = connection.recv()
        except EOFError:
            return
        # Ended by the kernel: no code of Python's gets a turn while a large power is computed.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            verdict = equal(gold, given)
        except MemoryError:
            return  # what a parser had half built stays half built: a new process is better
        except Exception:
            # Whatever it was: a text that math-verify or sympy cannot digest is not the answer. The parsers raise
            # errors of many kinds on what a model writes, and one that got out would end this process.
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send(verdict)


def _limit_memory(extra: int) -> None:
    """Refuse this process more address space than it has now and ``extra`` bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + extra
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
