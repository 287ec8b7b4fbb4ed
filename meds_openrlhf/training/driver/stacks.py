"""What every process of a run is doing, written down when it hangs: a file of Python stacks per process.

A process that waits in a collective runs no Python and answers no call, so each one is asked by a signal, which
Python's faulthandler answers from C into a file in memory; a task on its node reads that through /proc.
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
# To answer the signal; most do within a millisecond.
WRITING_SECONDS = 10.0
LOOK_SECONDS = 0.2
NODE_SECONDS = 60.0


def arm() -> None:
    """From now on this process answers the signal. Costs nothing until then."""
    if getattr(arm, "file", None) is None:
        arm.file = os.fdopen(os.memfd_create(MEMORY_FILE), "w")  # type: ignore[attr-defined]
        faulthandler.register(SIGNAL, file=arm.file, all_threads=True)  # type: ignore[attr-defined]


def collect(folder: Path, members: Iterable[Member]) -> Path:
    """Write the stacks of ``members`` and of their child processes; the new folder below ``folder``.

    A process that cannot be asked gets a file that says why.
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
    """The stacks of armed processes of this node, and of the processes that they have started."""
    written = {process: _written(process) for process in processes}
    armed = {process: len(text) for process, text in written.items() if text is not None}
    for process in armed:  # an unarmed one would die of the signal
        with suppress(ProcessLookupError):
            os.kill(process, SIGNAL)
    _wait_for_more_than(armed)
    return {
        process: "\n".join([_answer_of(process, armed.get(process, 0)), *map(_from_outside, _children(process))])
        for process in processes
    }


def _wait_for_more_than(before: dict[int, int]) -> None:
    """Until each process has written more than ``before`` says and come to an end, for `WRITING_SECONDS` at most."""
    deadline, last = time.monotonic() + WRITING_SECONDS, before
    while time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        texts = {process: _written(process) for process in before}
        now = {process: len(text) for process, text in texts.items() if text is not None}  # those that still are
        if all(before[process] < size == last[process] for process, size in now.items()):
            return
        last = {**last, **now}


def _answer_of(process: int, before: int) -> str:
    written = _written(process)
    if written is None:
        return _from_outside(process)
    return written[before:] or "it did not answer the signal"


def _written(process: int) -> str | None:
    """All that a process has written so far; None where it is not armed."""
    for descriptor in Path(f"/proc/{process}/fd").glob("*"):
        try:
            if MEMORY_FILE in os.readlink(descriptor):
                return descriptor.read_text()
        except OSError:  # closed meanwhile
            continue
    return None


def _children(process: int) -> list[int]:
    """vLLM's engine core and the like: processes of libraries, which nobody armed."""
    try:
        lists = [(task / "children").read_text().split() for task in Path(f"/proc/{process}/task").iterdir()]
    except OSError:
        return []
    found = [int(child) for one in lists for child in one]
    return [*found, *(grandchild for child in found for grandchild in _children(child))]


def _from_outside(process: int) -> str:
    """A process's stacks as py-spy sees them, where the system lets it look."""
    title = f"process {process}"
    try:
        seen = subprocess.run(["py-spy", "dump", "--pid", str(process)], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{title}: py-spy could not look ({error})"
    return f"{title}\n{seen.stdout or seen.stderr}"
