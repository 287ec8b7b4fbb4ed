"""Writes the Python stacks of every process of a run that hangs, one file per process.

A process that waits in a collective runs no Python code and answers no calls. Therefore each process gets a signal;
Python's faulthandler handles it in C and writes to an in-memory file, which a task on the same node reads through
/proc.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from meds_openrlhf.files import write_atomically
from meds_openrlhf.training.driver.members import Member, actor_table

SIGNAL = signal.SIGUSR2
MEMORY_FILE = "meds-stacks"
# Time limit for an answer to the signal; most processes answer within a millisecond.
WRITING_SECONDS = 10.0
LOOK_SECONDS = 0.2
NODE_SECONDS = 60.0


def arm() -> None:
    """Register the signal handler in this process; it costs nothing until the signal arrives."""
    if getattr(arm, "file", None) is None:
        arm.file = os.fdopen(os.memfd_create(MEMORY_FILE), "w")  # type: ignore[attr-defined]
        faulthandler.register(SIGNAL, file=arm.file, all_threads=True)  # type: ignore[attr-defined]


def collect(folder: Path, members: Iterable[Member]) -> Path:
    """Write the stacks of ``members`` and their child processes to a new folder below ``folder``; return its path.

    A process that cannot be reached gets a file with the reason.
    """
    target = folder / f"{datetime.now():%Y%m%d-%H%M%S}"
    table = actor_table()
    asked: dict[str, dict[int, str]] = {}
    for member in members:
        actor = table.get(member.actor_id)
        if actor is None or actor["State"] != "ALIVE":
            write_atomically(_file(target, member.name), f"not running: {actor['State'] if actor else 'unknown'}\n")
        else:
            asked.setdefault(actor["Address"]["NodeID"], {})[actor["Pid"]] = member.name
    answers = {node: _ask(node, sorted(names)) for node, names in asked.items()}
    for node, names in asked.items():
        texts = _answer(answers[node], names)
        for process, name in names.items():
            write_atomically(_file(target, name), f"{name}, process {process} on node {node}\n\n{texts[process]}\n")
    return target


def _file(target: Path, name: str) -> Path:
    return target / f"{name.replace(' ', '-')}.txt"


def _ask(node: str, processes: list[int]) -> Any:
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0)(stacks_on_this_node).options(scheduling_strategy=here).remote(processes)


def _answer(reference: Any, names: dict[int, str]) -> dict[int, str]:
    try:
        texts: dict[int, str] = ray.get(reference, timeout=NODE_SECONDS)
        return texts
    except ray.exceptions.RayError as error:
        return dict.fromkeys(names, f"the node does not answer: {type(error).__name__}")


def stacks_on_this_node(processes: list[int]) -> dict[int, str]:
    """Return the stacks of processes on this node, including those of their child processes."""
    written = {process: _written(process) for process in processes}
    armed = {process: len(text) for process, text in written.items() if text is not None}
    for process in armed:  # the signal would kill an unarmed process
        with suppress(ProcessLookupError):
            os.kill(process, SIGNAL)
    _wait_for_more_than(armed)
    return {
        process: "\n".join([_answer_of(process, armed.get(process, 0)), *map(_from_outside, _children(process))])
        for process in processes
    }


def _wait_for_more_than(before: dict[int, int]) -> None:
    """Wait up to `WRITING_SECONDS` until each process has written more than ``before`` and stopped writing."""
    deadline, last = time.monotonic() + WRITING_SECONDS, before
    while time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        texts = {process: _written(process) for process in before}
        now = {process: len(text) for process, text in texts.items() if text is not None}  # processes still alive
        if all(before[process] < size == last[process] for process, size in now.items()):
            return
        last = {**last, **now}


def _answer_of(process: int, before: int) -> str:
    written = _written(process)
    if written is None:
        return _from_outside(process)
    return written[before:] or "it did not answer the signal"


def _written(process: int) -> str | None:
    """Return all that a process has written so far, or None if it is not armed."""
    for descriptor in Path(f"/proc/{process}/fd").glob("*"):
        try:
            if MEMORY_FILE in os.readlink(descriptor):
                return descriptor.read_text()
        except OSError:  # closed meanwhile
            continue
    return None


def _children(process: int) -> list[int]:
    """Return child processes recursively, such as vLLM's engine core, which libraries start unarmed."""
    try:
        lists = [(task / "children").read_text().split() for task in Path(f"/proc/{process}/task").iterdir()]
    except OSError:
        return []
    found = [int(child) for numbers in lists for child in numbers]
    return [*found, *(grandchild for child in found for grandchild in _children(child))]


def _from_outside(process: int) -> str:
    """Return a process's stacks from py-spy, if the system permits it."""
    title = f"process {process}"
    try:
        seen = subprocess.run(["py-spy", "dump", "--pid", str(process)], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{title}: py-spy could not look ({error})"
    return f"{title}\n{seen.stdout or seen.stderr}"
