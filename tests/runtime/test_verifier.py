"""The pool of processes that compare answers."""

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from meds_openrlhf.runtime.verifier import AnswerVerifier
from tests.processes import is_alive, wait_until

pytestmark = pytest.mark.needs("math_verify")

COMPARISON = "meds_openrlhf.rewards.comparison"
FOREVER = "9^{9^{9^9}}"
MEBIBYTE = 1 << 20


def examiners(pool: AnswerVerifier) -> set[int]:
    """The pool's processes: the children of its server."""
    server = pool._server._process
    if server is None:
        return set()
    return {int(word) for word in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()}


def is_equal(pool: AnswerVerifier, gold: str, given: str) -> bool | None:
    verdict: bool | None = pool.ask("equal", gold, given)
    return verdict


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_hanging_answer_holds_up_nobody_and_ends_with_its_process() -> None:
    pool = AnswerVerifier(COMPARISON, "math_verify", seconds=100.0, processes=2)
    assert is_equal(pool, "0.5", "1/2") is True
    (first,) = examiners(pool)
    before = cpu_seconds(first)
    verdicts: list[bool | None] = []
    hanging = threading.Thread(target=lambda: verdicts.append(is_equal(pool, "7", FOREVER)))
    hanging.start()
    wait_until(lambda: len(examiners(pool)) == 2 or cpu_seconds(first) > before + 0.2)
    assert is_equal(pool, "7", r"\frac{14}{2}") is True
    assert is_equal(pool, "7", r"\frac{16}{2}") is False
    assert hanging.is_alive()
    assert len(examiners(pool)) == 2
    for process in examiners(pool):
        os.kill(process, signal.SIGKILL)
    hanging.join()
    assert verdicts == [None]


def test_processes_start_when_needed_and_are_replaced() -> None:
    pool = AnswerVerifier(COMPARISON, "math_verify", seconds=1.0, processes=1, memory=256 * MEBIBYTE)
    assert not examiners(pool)
    assert is_equal(pool, "7", r"\frac{14}{2}") is True
    first = examiners(pool)
    (pid,) = first
    assert is_equal(pool, "7", r"\frac{21}{3}") is True
    assert examiners(pool) == first
    size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    limit, hard = resource.prlimit(pid, resource.RLIMIT_AS)
    assert limit == hard  # it cannot be raised again
    assert 200 * MEBIBYTE < limit - size <= 256 * MEBIBYTE
    assert is_equal(pool, "7", FOREVER) is None
    wait_until(lambda: not examiners(pool) & first)
    assert is_equal(pool, "7", r"\frac{28}{4}") is True
    (pid,) = examiners(pool)
    os.kill(pid, signal.SIGKILL)  # while it is idle, which costs nobody a verdict
    wait_until(lambda: not examiners(pool))
    assert is_equal(pool, "0.25", "1/4") is True
    server = pool._server._process
    assert server is not None
    server.kill()  # so does its server
    server.wait()
    assert is_equal(pool, "7", FOREVER) is None
    assert is_equal(pool, "0.75", "3/4") is True


def test_many_threads_get_their_own_verdicts() -> None:
    pool = AnswerVerifier(COMPARISON, "math_verify", processes=2)
    questions = [(str(n), rf"\frac{{{2 * n + n % 2}}}{{2}}") for n in range(100)]
    with ThreadPoolExecutor(32) as threads:
        verdicts = list(threads.map(lambda question: is_equal(pool, *question), questions))
    assert verdicts == [n % 2 == 0 for n in range(100)]
    assert len(examiners(pool)) == 2


def test_an_answer_costs_its_time_limit_once() -> None:
    pool = AnswerVerifier(COMPARISON, "math_verify", seconds=1.0, processes=1, remembered=2)
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(lambda given: is_equal(pool, "7", given), [FOREVER] * 6)) == [None] * 6
    wait_until(lambda: not examiners(pool))  # had a second thread asked, another would have been started after it
    assert is_equal(pool, "0.25", "1/4") is True
    (process,) = examiners(pool)
    assert is_equal(pool, "7", FOREVER) is None
    assert examiners(pool) == {process}  # nobody asked it
    assert is_equal(pool, "0.5", "1/2") is True
    assert is_equal(pool, "0.2", "1/5") is True  # these two are remembered now
    assert is_equal(pool, "7", FOREVER) is None
    wait_until(lambda: not examiners(pool))


def test_a_process_that_cannot_start_is_an_error_and_no_verdict() -> None:
    pool = AnswerVerifier("tests.runtime.no_such_module", "math_verify")
    with pytest.raises(RuntimeError, match="failed to start"):
        pool.ask("equal", "0.5", "1/2")
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_package'") as missing:
        AnswerVerifier(COMPARISON, "no_such_package").ask("equal", "0.5", "1/2")
    assert missing.value.name == "no_such_package"  # which a command tells how to install


def test_processes_have_no_keys_and_no_unread_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    monkeypatch.setenv("LANG", "C.UTF-8")
    pool = AnswerVerifier(COMPARISON, "math_verify", processes=1)
    assert is_equal(pool, "0.5", "1/2") is True
    (pid,) = examiners(pool)
    content = Path(f"/proc/{pid}/environ").read_text().split("\0")
    names = {line.partition("=")[0] for line in content if line}
    assert {"LANG", "PYTHONHASHSEED"} <= names
    assert not names & {"WANDB_API_KEY", "HF_TOKEN", "HOME"}
    assert "k" * 40 not in "".join(content)
    folder = Path(os.readlink(f"/proc/{pid}/cwd"))
    assert list(folder.iterdir()) == []
    assert os.readlink(f"/proc/{pid}/fd/1") == os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
    del pool
    gc.collect()
    wait_until(lambda: not folder.exists())


ORPHANING = f"""
import os, signal, threading, time
from tests.runtime.test_verifier import COMPARISON, AnswerVerifier, examiners
pool = AnswerVerifier(COMPARISON, "math_verify", seconds=1.0)
pool.ask("equal", "0.5", "1/2")
print(*examiners(pool), pool._server._process.pid, flush=True)
threading.Thread(target=pool.ask, args=("equal", "7", "{FOREVER}"), daemon=True).start()
time.sleep(0.3)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_engine_leaves_no_process_that_computes_for_ever() -> None:
    engine = subprocess.run([sys.executable, "-c", ORPHANING], stdout=subprocess.PIPE, text=True, check=False)
    assert engine.returncode == -signal.SIGKILL
    examiner, server = map(int, engine.stdout.split())
    wait_until(lambda: not is_alive(examiner) and not is_alive(server))
