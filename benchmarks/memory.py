"""What the memory costs a training step, beside the reference's algorithm written plainly, on one core.

A step visits 512 prompts with 8 wrong rollouts each, 28 layers, of which the last 14 are clustered. A prompt's errors
are of five kinds; two fifths of the rows are word-for-word repeats of one. The parts:

- step: `MemoryShard.observe` (cluster labels, rows written and synced, answer) beside one fitted nearest-neighbour
  search per new vector; what a training step waits for.
- clustering: `MemoryShard.recluster` of the 512 prompts beside hdbscan set by set; it runs while the policy trains.
  `robust alone` and `reference alone` are `cluster_sets` under those presets, without fetching rows.
- snapshot: `MemoryShard.snapshot` and its manifest beside a JSON dump of the whole memory.
- restart: a new process opens a memory and answers its first step, with and without the index of a clean end.
- growth: the same step in a large memory and in a small one, each in a process of its own; and memory per row.

Everything takes turns in rounds, so that a slow minute of the machine hits both sides. A table row holds medians over
the rounds, quartiles in brackets; ratios are per round. Files are in the page cache, compiled code is in numba's.
Memories are written below TMPDIR, 2 GB.
With --scale it is the CPU time of 1, 2, 4 and 8 shards instead, each a process. From the repository's root:

    python -m benchmarks.memory
    python -m benchmarks.memory --parts step,clustering --rounds 9
    python -m benchmarks.memory --scale
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before numpy is there, whose libraries read these once; child processes inherit them
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    os.environ["NUMBA_NUM_THREADS"] = "1"

import hdbscan
import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from meds_openrlhf.memory.clustering import cluster_sets
from meds_openrlhf.memory.presets import PRESETS
from meds_openrlhf.memory.routing import shard_of
from meds_openrlhf.memory.rows import make_rows
from meds_openrlhf.memory.segment import Sharding
from meds_openrlhf.memory.shard import MemoryShard, ShardAnswer, ShardSettings
from meds_openrlhf.memory.snapshot import MemoryFormat, Snapshot, commit_snapshot
from meds_openrlhf.paths import MemoryPaths

LAYERS, MODES, ROWS = 28, 5, 8  # ROWS: of a prompt in one visit
REPEATED = 0.4  # of the rows
PARTS = ("step", "clustering", "snapshot", "restart", "growth")

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is stored and asked; ``stored`` rows per prompt, and the one of them that has bounds."""

    per_step: int = 512
    stored: tuple[int, ...] = (16, 64, 160, 400)
    bounded: int = 160
    snapshot_prompts: int = 25_000  # with 16 rows each
    restart_prompts: int = 62_500  # with 16 rows each
    small: int = 10_000  # with 8 rows each, as the next
    large: int = 1_000_000


QUICK = Sizes(per_step=8, stored=(16,), bounded=16, snapshot_prompts=32, restart_prompts=32, small=64, large=128)


@dataclass(frozen=True)
class Line:
    """One row of the table: seconds per round (r,), those of what it is compared with, and what is asked of them."""

    name: str
    seconds: Floats
    compared: Floats | None = None
    at_most_ratio: float | None = None
    at_most_seconds: float | None = None

    def __str__(self) -> str:
        """As a row of a Markdown table."""
        bounds, met = [], True
        ratio = None if self.compared is None else np.median(self.seconds / self.compared)
        if ratio is not None and self.at_most_ratio is not None:
            bounds.append(f"{self.at_most_ratio:g} x")
            met = met and ratio <= self.at_most_ratio
        if self.at_most_seconds is not None:
            bounds.append(f"{1e3 * self.at_most_seconds:,.0f} ms")
            met = met and np.median(self.seconds) <= self.at_most_seconds
        verdict = "" if not bounds else "met" if met else "missed"
        compared = "" if self.compared is None else spread(self.compared)
        cells = [self.name, spread(self.seconds), compared, "" if ratio is None else f"{ratio:.3g}"]
        return f"| {' | '.join([*cells, ', '.join(bounds), verdict])} |"


def spread(seconds: Floats) -> str:
    """Median milliseconds, and in brackets the quartiles."""
    low, median, high = (1e3 * value for value in np.quantile(seconds, [0.25, 0.5, 0.75]))
    return f"{median:,.1f} ({low:,.1f} to {high:,.1f})"


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Seconds that ``work`` took, and its result."""
    started = time.perf_counter()
    result = work(*arguments)
    return time.perf_counter() - started, result


# ── the stream, and a memory that lives on it ──


def key(prompt: int) -> str:
    """A key as a hashed prompt has it."""
    return f"{prompt:032x}"


class Memory:
    """One shard below ``folder`` and the stream that it gets: the same seed gives the same rows."""

    def __init__(self, folder: Path, seed: int = 0, shard: int = 0, shards: int = 1, step: int = 0) -> None:
        self.paths = MemoryPaths(folder)
        self.shard = MemoryShard(self.paths, Sharding(shard, shards), ShardSettings(layers=LAYERS))
        self._modes = np.random.default_rng(0).normal(scale=4, size=(512, MODES, LAYERS))  # of prompts modulo 512
        self._generator = np.random.default_rng(seed)
        self._step = step

    def rows(self, prompts: NDArray[np.int64]) -> NDArray[np.float32]:
        """Layer logits (p, 8, N) of one visit of ``prompts`` (p,)."""
        shape = (len(prompts), ROWS)
        modes = self._modes[prompts[:, None] % len(self._modes), self._generator.integers(MODES, size=shape)]
        scatter = 0.3 * (self._generator.random(shape) > REPEATED)
        return (modes + scatter[..., None] * self._generator.normal(size=modes.shape)).astype(np.float32)

    def observe(self, prompts: NDArray[np.int64], logits: NDArray[np.float32]) -> tuple[float, ShardAnswer]:
        """The next step: ``logits`` (p, 8, N) of ``prompts`` (p,). Making the Arrow batch is not in the seconds."""
        self._step += 1
        keys = [key(prompt) for prompt in prompts.tolist() for _ in range(ROWS)]
        batch = make_rows(np.arange(len(keys)), keys, np.zeros(len(keys), bool), logits.reshape(-1, LAYERS))
        return timed(self.shard.observe, self._step, batch)

    def fill(self, prompts: NDArray[np.int64], rows: int) -> NDArray[np.float32]:
        """Visit ``prompts`` (p,) in steps of their own until each has so many ``rows``: (p, rows, N)."""
        visits = [self.rows(prompts) for _ in range(rows // ROWS)]
        for logits in visits:
            self.observe(prompts, logits)
            self.shard.recluster()
        return np.concatenate(visits, axis=1)


def in_steps(prompts: int, per_step: int) -> list[NDArray[np.int64]]:
    """The numbers below ``prompts``, so many at a time."""
    return np.split(np.arange(prompts), range(per_step, prompts, per_step))


def in_random_steps(prompts: int, per_step: int) -> NDArray[np.int64]:
    """The same (steps, per_step) in random order, none twice; the rest that makes no whole step is left out."""
    order = np.random.default_rng(1).permutation(prompts)
    return order[: prompts // per_step * per_step].reshape(-1, per_step)


# ── the reference's algorithm ──


def reference_vectors(logits: NDArray[np.float32]) -> Floats:
    """Unit vectors (..., N / 2) of the last half of the layers."""
    vectors = logits[..., LAYERS // 2 :].astype(np.float64)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def reference_votes(
    new: Floats, stored: Floats, labels: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Labels (p * m,) of ``new`` (p, m, d) by a vote of 3 of ``stored`` (p, n, d); and where two of the 3 agree."""
    found, clear = [], []
    for vectors, known, known_labels in zip(new, stored, labels):
        for vector in vectors:
            model = NearestNeighbors(n_neighbors=3, metric="cosine").fit(known)
            votes = known_labels[model.kneighbors(vector[None], return_distance=False)[0]].tolist()
            most = max(votes.count(label) for label in votes)
            found.append(min(label for label in votes if votes.count(label) == most))
            clear.append(most > 1)
    return np.array(found), np.array(clear)


def reference_clustering(sets: Floats) -> None:
    """Cluster each of ``sets`` (p, n, d) with hdbscan's defaults."""
    for vectors in sets:
        hdbscan.HDBSCAN(min_cluster_size=2, min_samples=1).fit(vectors)


# ── step and clustering ──


def measure_steps(sizes: Sizes, stored: int, rounds: int, parts: list[str], folder: Path) -> Iterator[Line | str]:
    """Steps of prompts with ``stored`` rows each, others in every round; the first round is to warm up."""
    memory = Memory(folder)
    visits = in_steps((rounds + 1) * sizes.per_step, sizes.per_step)
    histories = [reference_vectors(memory.fill(prompts, stored)) for prompts in visits]
    results = [one_round(memory, prompts, known, parts) for prompts, known in zip(visits, histories)][1:]
    memory.shard.close()
    table = {name: np.array([result[name] for result in results]) for name in results[0]}
    at_most = {"step": (1 / 100, 0.060), "clustering": (1 / 10, None)} if stored == sizes.bounded else {}
    if "step" in parts:
        yield Line(f"step, {stored} stored", table["step"], table["votes"], *at_most.get("step", ()))
        yield (
            f"Step, {stored} stored: {1e3 * np.median(table['assign']):.1f} ms to assign, "
            f"{1e3 * np.median(table['append']):.1f} to write; labels equal the reference's on "
            f"{table['equal'].sum():,.0f} of the {table['clear'].sum():,.0f} rows on which two of three voters agree."
        )
    if "clustering" in parts:
        name, limits = f"clustering, {stored} stored", at_most.get("clustering", ())
        yield Line(f"{name}, paper", table["paper"], table["hdbscan"], *limits)
        for preset in ("robust", "reference"):
            yield Line(f"{name}, {preset} alone", table[preset], table["hdbscan"])


def one_round(memory: Memory, prompts: NDArray[np.int64], known: Floats, parts: list[str]) -> dict[str, float]:
    """Seconds by name of one step of ``prompts`` (p,), of which ``known`` (p, n, d) is stored, and of the reference."""
    labels = np.array([memory.shard.labels(key(prompt)) for prompt in prompts.tolist()])
    logits = memory.rows(prompts)
    new = reference_vectors(logits)
    result: dict[str, float] = {}
    result["step"], answer = memory.observe(prompts, logits)
    result["paper"] = memory.shard.recluster()
    result["assign"], result["append"] = answer.assign_seconds, answer.append_seconds
    if "step" in parts:
        result["votes"], (found, clear) = timed(reference_votes, new, known, labels)
        result["equal"], result["clear"] = ((answer.label == found) & clear).sum(), clear.sum()
    if "clustering" in parts:
        sets = np.concatenate([known, new], axis=1)
        result["hdbscan"] = timed(reference_clustering, sets)[0]
        flat, offsets = sets.reshape(-1, sets.shape[2]), np.arange(len(sets) + 1, dtype=np.int64) * sets.shape[1]
        for preset in ("robust", "reference"):
            result[preset] = timed(cluster_sets, flat, offsets, PRESETS[preset].clustering)[0]
    return result


# ── snapshot ──


def measure_snapshot(sizes: Sizes, rounds: int, folder: Path) -> Iterator[Line]:
    """Commit a snapshot after a step, beside a dump of the same rows to a JSON file."""
    memory = Memory(folder / "ours")
    vectors: list[Any] = []
    for prompts in in_steps(sizes.snapshot_prompts, sizes.per_step):
        vectors += reference_vectors(memory.fill(prompts, 16)).tolist()
    dumped = {
        key(prompt): {"features": features, "labels": memory.shard.labels(key(prompt)).tolist()}
        for prompt, features in enumerate(vectors)
    }

    def commit(number: int) -> None:
        snapshot = Snapshot(MemoryFormat(shards=1, layers=LAYERS, model={}), "", memory.shard.snapshot())
        commit_snapshot(memory.paths, f"global_step{number}", snapshot)

    def dump() -> None:
        with (folder / "reference.json").open("w", encoding="utf-8") as file:
            json.dump(dumped, file)

    seconds = []
    for number, prompts in zip(range(rounds), in_random_steps(sizes.snapshot_prompts, sizes.per_step)):
        memory.observe(prompts, memory.rows(prompts))
        seconds.append((timed(commit, number)[0], timed(dump)[0]))
    memory.shard.close()
    yield Line(f"snapshot, {len(vectors):,} prompts of 16 rows", *np.array(seconds).T, at_most_ratio=1 / 1000)


# ── processes of their own: restart, growth, scale ──

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
    """Restart a memory, in turns without any index and with them."""
    with start_process() as process:
        process.submit(open_here, {"folder": folder}, in_steps(sizes.restart_prompts, sizes.per_step), 16).result()
        process.submit(close_here).result()
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number, prompts in zip(range(rounds), in_random_steps(sizes.restart_prompts, sizes.per_step)):
        for indexed in (False, True):
            for index in [] if indexed else folder.rglob("*.index"):
                index.unlink()  # a process that is killed leaves none
            with start_process() as process:
                step = 10**6 + 2 * number + indexed
                seconds[indexed].append(process.submit(restart_here, folder, step, prompts).result())
    name = f"restart, {16 * sizes.restart_prompts:,} rows"
    yield Line(name, np.array(seconds[True]), at_most_seconds=1.5)
    yield Line(f"{name}, no index", np.array(seconds[False]), at_most_seconds=1.5)


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
    yield Line(f"observe, {against}", large[:, 0], small[:, 0], at_most_ratio=1.1)
    yield Line(f"observe and recluster, {against}", large[:, 1], small[:, 1], at_most_ratio=1.1)
    per_prompt = (used[1] - used[0]) / (sizes.large - sizes.small)
    yield f"Resident memory beside mapped files: {per_prompt / ROWS:.0f} bytes per row, {per_prompt:.0f} per prompt."


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
    own = [prompts[[shard_of(key(prompt), shards) == shard for prompt in prompts.tolist()]] for prompts in visits]
    memory = {"folder": folder / str(shards), "seed": shard, "shard": shard, "shards": shards}
    with start_process() as process:
        process.submit(open_here, memory, own, stored).result()
        results = [process.submit(step_here, prompts).result() for prompts in own]
        process.submit(close_here).result()
    return [cpu for _, _, cpu in results]


# ── the command ──


def parse_arguments(command_line: list[str] | None) -> argparse.Namespace:
    """What to measure, and how often."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="which of the parts above, commas between them")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured; growth up to 3 times that")
    parser.add_argument("--scale", action="store_true", help="CPU time over 1, 2, 4 and 8 shards, and no other part")
    parser.add_argument(
        "--quick", action="store_true", help="minuscule sizes, to see that it runs; no bound holds then"
    )
    arguments = parser.parse_args(command_line)
    arguments.parts = arguments.parts.split(",")
    for part in arguments.parts:
        if part not in PARTS:
            parser.error(f"--parts: {part!r} is none of {', '.join(PARTS)}")
    return arguments


def measure(arguments: argparse.Namespace, folder: Path) -> Iterator[Line | str]:
    """All that was asked for, part by part."""
    sizes, rounds, parts = QUICK if arguments.quick else Sizes(), arguments.rounds, arguments.parts
    if "step" in parts or "clustering" in parts:
        for stored in sizes.stored:
            yield from measure_steps(sizes, stored, rounds, parts, folder / f"stored-{stored}")
    if "snapshot" in parts:
        yield from measure_snapshot(sizes, rounds, folder / "snapshot")
    if "restart" in parts:
        yield from measure_restart(sizes, rounds, folder / "restart")
    if "growth" in parts:
        yield from measure_growth(sizes, 3 * rounds, folder / "growth")


def main(command_line: list[str] | None = None) -> None:
    """Print the table, and below it what does not fit in."""
    arguments = parse_arguments(command_line)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {arguments.rounds} rounds\n"
    )
    notes = []
    with tempfile.TemporaryDirectory() as folder:
        if arguments.scale:
            print(*measure_scale(QUICK if arguments.quick else Sizes(), arguments.rounds, Path(folder)), sep="\n")
            return
        print("| measured | ms | compared with, ms | ratio | at most | |\n|---|---|---|---|---|---|")
        for line in measure(arguments, Path(folder)):
            if isinstance(line, Line):
                print(line, flush=True)
            else:
                notes.append(line)
    print("", *notes, sep="\n")


if __name__ == "__main__":
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    main()
