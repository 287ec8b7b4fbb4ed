"""The process in which untrusted texts are judged: it has no keys, and every question has limits.

A server imports a module once and forks an examiner for each connection, so that a replacement does not spend seconds
on imports. Questions and replies are JSON, never pickles, which would be code. `AnswerVerifier` is the other side.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import socket
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Wall-clock limit as a multiple of the CPU time limit, in case a busy machine gives a process hardly any CPU time.
PATIENCE = 12.0


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
