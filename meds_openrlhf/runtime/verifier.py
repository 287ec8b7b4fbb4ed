"""Judge answers in separate processes with hard limits on time and memory.

`9^{9^{9}}` is a short answer, but its computation never finishes and never releases the GIL: in a thread, it would
block the whole engine. So comparisons run in a few other processes. A process that exceeds its time limit is killed and
replaced, and allocations beyond the memory limit fail.

A server imports a module once and forks an examiner for each connection, so that a replacement does not spend seconds
on imports. An examiner has no keys. Questions and replies are JSON, never pickles, which would be code.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Wall-clock limit as a multiple of the CPU time limit, in case a busy machine gives a process hardly any CPU time.
PATIENCE = 12.0
# What examiners get of this process's environment, which may contain keys.
_KEPT = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR", "LANG", "LC_ALL", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
# The order of sets is the same in all of them, and so are the problems that tasks of reasoning-gym make.
_SET = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class AnswerVerifier:
    """Asks about answers in up to ``processes`` processes, which start on demand.

    ``module`` names the module whose functions answer; it has a function `warm_up`, too, and needs ``package``, which
    an extra installs.
    There is no answer to a question that takes more than ``seconds`` of CPU time (so that load does not change
    verdicts) or more than ``memory`` bytes beyond the process's initial memory. The last ``remembered`` replies are
    cached: an answer that uses up its time limit does so only once, even if many threads ask at the same time.
    Thread-safe.
    """

    def __init__(
        self,
        module: str,
        package: str,
        seconds: float = 5.0,
        processes: int = 4,
        memory: int = 1 << 30,
        remembered: int = 8192,
    ) -> None:
        self._seconds = seconds
        self._server = _Server(module, package, memory)
        self._threads = ThreadPoolExecutor(processes)  # each asks a process of its own
        self._own = threading.local()
        self._lock = threading.Lock()
        self._asked = functools.lru_cache(remembered)(lambda *question: self._threads.submit(self._ask, *question))

    def ask(self, function: str, *arguments: str, seconds: float | None = None) -> Any:
        """What the module's ``function`` returns for ``arguments``, as JSON: False if it raises, None beyond limits.

        ``seconds`` replaces the limit of CPU time. Raises ModuleNotFoundError if the package is not installed,
        RuntimeError if no process can be started.
        """
        with self._lock:
            reply = self._asked(seconds or self._seconds, function, *arguments)
        try:
            return reply.result()
        except Exception:
            self._asked.cache_clear()  # it may start the next time
            raise

    def _ask(self, seconds: float, function: str, *arguments: str) -> Any:
        examiner = getattr(self._own, "examiner", None) or self._server.connect()
        content = json.dumps((function, arguments, seconds)).encode()
        try:
            examiner.send_bytes(content)
        except OSError:  # its process ended while nothing was asked
            examiner = self._server.connect()
            examiner.send_bytes(content)
        self._own.examiner = examiner
        try:
            if examiner.poll(PATIENCE * seconds):
                return json.loads(examiner.recv_bytes())
        except (EOFError, OSError):
            pass
        examiner.close()  # the process has ended, or is about to
        self._own.examiner = None
        return None


class _Server:
    """The process from which examiners are forked; it starts with the first of them."""

    def __init__(self, module: str, package: str, memory: int) -> None:
        self._arguments = module, memory
        self._package = package
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def connect(self) -> Connection:
        """A connection to a new examiner that has finished its imports, which do not count as a question's time."""
        ours, theirs = Pipe()
        with self._lock, theirs:
            if self._process is None or self._process.poll() is not None:
                self._start()
            with suppress(OSError):  # it has ended, and will not say that it is ready
                socket.send_fds(self._control, [b"."], [theirs.fileno()])
        try:
            ours.recv_bytes()
        except (EOFError, OSError):
            raise RuntimeError("a process that checks answers failed to start; its output above says why") from None
        return ours

    def _start(self) -> None:
        if find_spec(self._package) is None:
            raise ModuleNotFoundError(f"No module named {self._package!r}", name=self._package)
        self._control, theirs = socket.socketpair()
        code = (
            f"import sys; sys.path[:] = {[os.path.abspath(path) for path in sys.path]!r}\n"
            "from meds_openrlhf.runtime.verifier import serve\n"
            f"serve({theirs.fileno()}, *{self._arguments!r})"
        )
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", code],
                env=environment | _SET,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # some scorers print
                start_new_session=True,  # a signal to this process's group is not for it; it ends when this one does
            )


def serve(control: int, module: str, memory: int) -> None:
    """Fork an examiner for each connection that arrives at the socket ``control``, until its other end closes.

    ``module`` has the functions that answer, and `warm_up`, which is called before limits apply. ``memory`` is in bytes
    beyond what the process has by then.
    """
    judge = importlib.import_module(module)
    judge.warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # examiners that have ended leave no zombies
    # An empty folder: a task of reasoning-gym runs programs of its own, which open files by relative names.
    with TemporaryDirectory(prefix="meds-examiner-") as folder, socket.socket(fileno=control) as parent:
        os.chdir(folder)
        while True:
            _, descriptors, _, _ = socket.recv_fds(parent, 1, 1)
            if not descriptors:
                return
            if os.fork() == 0:
                try:
                    parent.close()
                    _examine(Connection(descriptors[0]), judge, memory)
                except Exception:
                    traceback.print_exc()  # of any kind: `_exit` would say nothing
                finally:
                    os._exit(0)
            os.close(descriptors[0])


def _examine(connection: Connection, judge: Any, memory: int) -> None:
    """Answer questions until the connection closes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit, most = pages * resource.getpagesize() + memory, resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    connection.send_bytes(str(os.getpid()).encode())
    while True:
        try:
            function, arguments, seconds = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        # The signals' default action kills the process: no Python code can run while a large power is computed.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE * seconds)
        try:
            reply = getattr(judge, function)(*arguments)
        except MemoryError:
            return  # the parser's state may be inconsistent: use a new process
        except Exception:
            # The parsers raise errors of many kinds on model output, and an uncaught error would end this process. A
            # text that math-verify, sympy or a task's scorer cannot process is not the answer.
            reply = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(json.dumps(reply).encode())
