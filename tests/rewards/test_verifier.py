"""The pool of processes that compare answers."""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from meds_openrlhf.rewards.verifier import AnswerVerifier, _Examiner
from tests.processes import is_alive
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("math_verify")

FOREVER = "9^{9^{9^9}}"
MEBIBYTE = 1 << 20
_OTHERS: set[int] = set()  # processes that answer for other tests of this process, which keep theirs


@pytest.fixture(autouse=True)
def _leave_no_process() -> Iterator[None]:
    _OTHERS.clear()
    _OTHERS.update(processes())
    yield
    kill_all()


def processes() -> set[int]:
    children = {process.pid for process in multiprocessing.active_children() if process.pid is not None}
    return children - _OTHERS


def kill_all() -> None:
    for process in processes():
        os.kill(process, signal.SIGKILL)


def test_a_hanging_answer_holds_up_nobody_and_ends_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, asked, ask = AnswerVerifier(seconds=100.0, processes=2), threading.Event(), _Examiner.ask

    def ask_and_tell(examiner: _Examiner, gold: str, given: str) -> bool | None:
        if given == FOREVER:
            asked.set()
        return ask(examiner, gold, given)

    monkeypatch.setattr(_Examiner, "ask", ask_and_tell)
    verdicts: list[bool | None] = []
    hanging = threading.Thread(target=lambda: verdicts.append(pool.equal("7", FOREVER)))
    hanging.start()
    assert asked.wait(60)
    assert pool.equal("7", r"\frac{14}{2}") is True
    assert pool.equal("7", r"\frac{16}{2}") is False
    assert hanging.is_alive()
    assert len(processes()) == 2
    kill_all()
    hanging.join()
    assert verdicts == [None]


def test_processes_start_when_needed_and_are_replaced() -> None:
    pool = AnswerVerifier(seconds=1.0, processes=1, memory=256 * MEBIBYTE)
    assert not processes()
    assert pool.equal("7", r"\frac{14}{2}") is True
    first = processes()
    (pid,) = first
    assert pool.equal("7", r"\frac{21}{3}") is True
    assert processes() == first
    size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    limit, hard = resource.prlimit(pid, resource.RLIMIT_AS)
    assert limit == hard  # it cannot be raised again
    assert 200 * MEBIBYTE < limit - size <= 256 * MEBIBYTE
    assert pool.equal("7", FOREVER) is None
    assert not processes() & first
    assert pool.equal("7", r"\frac{28}{4}") is True
    (pid,) = processes()
    os.kill(pid, signal.SIGKILL)  # while it is idle, which costs nobody a verdict
    wait_until(lambda: not processes())
    assert pool.equal("0.25", "1/4") is True


def test_many_threads_get_their_own_verdicts() -> None:
    pool = AnswerVerifier(processes=2)
    questions = [(str(n), rf"\frac{{{2 * n + n % 2}}}{{2}}") for n in range(100)]
    with ThreadPoolExecutor(32) as threads:
        verdicts = list(threads.map(lambda question: pool.equal(*question), questions))
    assert verdicts == [n % 2 == 0 for n in range(100)]
    assert len(processes()) == 2


def test_an_answer_costs_its_time_limit_once() -> None:
    pool = AnswerVerifier(seconds=1.0, processes=1, remembered=2)
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(pool.equal, ["7"] * 6, [FOREVER] * 6)) == [None] * 6
    assert not processes()  # one was ended; had a second thread asked, another would have been started after it
    assert pool.equal("0.25", "1/4") is True
    (process,) = processes()
    assert pool.equal("7", FOREVER) is None
    assert processes() == {process}  # nobody asked it
    assert pool.equal("0.5", "1/2") is True
    assert pool.equal("0.2", "1/5") is True  # these two are remembered now
    assert pool.equal("7", FOREVER) is None
    assert not processes()


def test_a_process_that_cannot_start_is_an_error_and_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = AnswerVerifier()
    with monkeypatch.context() as broken:
        broken.setattr("meds_openrlhf.rewards.verifier._serve", print)  # ends at once
        with pytest.raises(RuntimeError, match="failed to start"):
            pool.equal("0.5", "1/2")
    assert pool.equal("0.5", "1/2") is True


ORPHANING = f"""
import multiprocessing, os, signal, threading, time
from meds_openrlhf.rewards.verifier import AnswerVerifier, _Examiner
pool = AnswerVerifier(seconds=1.0)
pool.equal("0.5", "1/2")
process = multiprocessing.active_children()[0].pid
threading.Thread(target=pool.equal, args=("7", "{FOREVER}"), daemon=True).start()
time.sleep(0.3)
print(process, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_engine_leaves_no_process_that_computes_for_ever() -> None:
    engine = subprocess.run([sys.executable, "-c", ORPHANING], stdout=subprocess.PIPE, text=True, check=False)
    assert engine.returncode == -signal.SIGKILL
    process = int(engine.stdout)
    wait_until(lambda: not is_alive(process))
