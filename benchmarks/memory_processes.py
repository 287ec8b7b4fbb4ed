"""The parts of the memory's benchmark in which each memory has a process of its own: restart, growth, and scale."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.memory_stream import ROWS, Memory, Sizes, in_random_steps, in_steps, key
from benchmarks.timing_table import Line
from meds_openrlhf.memory.rows import shard_of

_memory: Memory  # of a child process


def start_process() -> ProcessPoolExecutor:
    """A new process, with everything imported, that runs the functions below one after another."""
    process = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    process.submit(abs, 0).result()
    return process


def open_here(memory: dict[str, Any], visits: list[NDArray[np.int64]], rows: int) -> int:
    """Make the memory of this process and fill it; how many bytes this process has that are no file's."""
    global _memory
    _memory = Memory(**memory)
    for prompts in visits:
        _memory.fill(prompts, rows)
    fields = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return 1024 * int(fields["Anonymous"].split()[0])


def close_here() -> None:
    """Give the memory's folder back."""
    _memory.shard.close()


def step_here(prompts: NDArray[np.int64]) -> tuple[float, float, float]:
    """Seconds to observe a step, and to observe and recluster it; and the CPU seconds of both."""
    logits = _memory.rows(prompts)
    cpu = time.process_time()
    seconds, _ = _memory.observe(prompts, logits)
    both = seconds + _memory.shard.recluster()
    return seconds, both, time.process_time() - cpu


def restart_here(folder: Path, step: int, prompts: NDArray[np.int64]) -> float:
    """Seconds from nothing to the answer of the first step."""
    started = time.perf_counter()
    memory = Memory(folder, seed=step, step=step)
    made = time.perf_counter() - started
    logits = memory.rows(prompts)
    seconds, _ = memory.observe(prompts, logits)
    memory.shard.close()
    return made + seconds


def measure_restart(sizes: Sizes, rounds: int, folder: Path) -> Iterator[Line]:
    """Restart a memory in a new process."""
    with start_process() as process:
        process.submit(open_here, {"folder": folder}, in_steps(sizes.restart_prompts, sizes.per_step), 16).result()
        process.submit(close_here).result()
    seconds = []
    for number, prompts in zip(range(rounds), in_random_steps(sizes.restart_prompts, sizes.per_step)):
        with start_process() as process:
            seconds.append(process.submit(restart_here, folder, 10**6 + number, prompts).result())
    yield Line(f"restart, {16 * sizes.restart_prompts:,} rows", np.array(seconds), at_most_seconds=1.0)


def measure_growth(sizes: Sizes, rounds: int, folder: Path) -> Iterator[Line | str]:
    """The same step in a small and in a large memory, who goes first alternating; every prompt once at most."""
    counts = (sizes.small, sizes.large)
    processes = [start_process() for _ in counts]
    used = [
        process.submit(open_here, {"folder": folder / str(count)}, in_steps(count, sizes.per_step), ROWS).result()
        for process, count in zip(processes, counts)
    ]
    seconds = []
    for number, prompts in zip(range(rounds + 1), zip(*(in_random_steps(count, sizes.per_step) for count in counts))):
        order = (0, 1) if number % 2 else (1, 0)
        results = {which: processes[which].submit(step_here, prompts[which]).result() for which in order}
        seconds.append([results[0], results[1]])
    for process in processes:
        process.submit(close_here).result()
        process.shutdown()
    small, large = np.moveaxis(np.array(seconds[1:]), 1, 0)  # (rounds, 3) each
    against = f"{sizes.large:,} prompts of {ROWS} rows against {sizes.small:,}"
    yield Line(f"observe, {against}", large[:, 0], small[:, 0])
    yield Line(f"observe and recluster, {against}", large[:, 1], small[:, 1])
    per_prompt = (used[1] - used[0]) / (sizes.large - sizes.small)
    yield f"Resident memory: {per_prompt / ROWS:.0f} bytes per row, {per_prompt:.0f} per prompt."


def measure_scale(sizes: Sizes, rounds: int, folder: Path) -> Iterator[str]:
    """Lines of the table of CPU time by number of shards."""
    yield "| shards | CPU ms a step, busiest shard | CPU µs per row, all shards | rows per second, a core per shard |"
    yield "|---|---|---|---|"
    visits = in_steps((rounds + 1) * sizes.per_step, sizes.per_step)
    for shards in (1, 2, 4, 8):
        seconds = np.array([cpu_of_shard(visits, sizes.bounded, folder, shard, shards) for shard in range(shards)])
        rows, busiest, together = ROWS * sizes.per_step, seconds[:, 1:].max(axis=0), seconds[:, 1:].sum(axis=0)
        cells = [f"{1e3 * np.median(busiest):.1f}", f"{1e6 * np.median(together) / rows:.1f}"]
        yield f"| {shards} | {' | '.join(cells)} | {rows / np.median(busiest):,.0f} |"


def cpu_of_shard(visits: list[NDArray[np.int64]], stored: int, folder: Path, shard: int, shards: int) -> list[float]:
    """CPU seconds that one shard, in a process of its own, takes for each step; ``stored`` rows per prompt."""
    prompts_here = [
        prompts[[shard_of(key(prompt), shards) == shard for prompt in prompts.tolist()]] for prompts in visits
    ]
    memory = {"folder": folder / str(shards), "seed": shard, "shard": shard, "shards": shards}
    with start_process() as process:
        process.submit(open_here, memory, prompts_here, stored).result()
        results = [process.submit(step_here, prompts).result() for prompts in prompts_here]
        process.submit(close_here).result()
    return [cpu for _, _, cpu in results]
