"""What the memory costs a training step, compared with a plain implementation of the reference, on one core.

A prompt's errors are of five kinds; two fifths of the rows are word-for-word repeats. Both sides alternate in rounds. A
table row holds medians over the rounds, quartiles in brackets; ratios are per round. Files are in the page cache,
compiled code is in numba's. From the repository's root:

    python -m benchmarks.memory
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":  # before numpy, whose libraries read these once; child processes inherit them
    os.environ.update({f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")})

import hdbscan
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from benchmarks.table import HEADER, Line, machine, make_parser, timed
from meds_openrlhf.memory.rows import Sharding, make_rows
from meds_openrlhf.memory.shard import MemoryAnswer, MemoryShard, ShardSettings
from meds_openrlhf.memory.snapshot import MemoryFormat, Snapshot, commit_snapshot
from meds_openrlhf.paths import MemoryPaths

Floats = NDArray[np.float64]

LAYERS, MODES, ROWS = 28, 5, 8  # ROWS: of a prompt in one visit
REPEATED = 0.4  # of the rows
SNAPSHOT_STEPS = 10
key = "{:032x}".format  # of a prompt's number, like that of a hashed prompt


class Sizes(NamedTuple):
    """How much is stored and asked; ``stored``: rows per prompt."""

    per_step: int
    stored: tuple[int, ...]
    snapshot_prompts: int  # with 16 rows each
    restart_prompts: int  # with 16 rows each, in two visits
    restart_files: int


FULL = Sizes(512, (16, 64, 160, 400), 25_000, 62_500, 1_000)
QUICK = Sizes(8, (16,), 32, 32, 8)


class Memory:
    """A shard below ``folder`` and a stream of rollouts; the same seed gives the same rows."""

    def __init__(self, folder: Path, seed: int = 0, step: int = 0) -> None:
        self.paths = MemoryPaths(folder)
        self.shard = MemoryShard(self.paths, Sharding(0, 1), ShardSettings(layers=LAYERS))
        self._modes = np.random.default_rng(0).normal(scale=4, size=(512, MODES, LAYERS))  # of prompts modulo 512
        self._generator = np.random.default_rng(seed)
        self._step = step

    def rows(self, prompts: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return layer logits (p, 8, N) of one visit of ``prompts`` (p,)."""
        shape = (len(prompts), ROWS)
        modes = self._modes[prompts[:, None] % len(self._modes), self._generator.integers(MODES, size=shape)]
        scatter = 0.3 * (self._generator.random(shape) > REPEATED)
        return (modes + scatter[..., None] * self._generator.normal(size=modes.shape)).astype(np.float32)

    def observe(self, prompts: NDArray[np.int64], logits: NDArray[np.float32]) -> tuple[float, MemoryAnswer]:
        """Observe ``logits`` (p, 8, N) as the next step; return milliseconds, without making the batch, and answer."""
        self._step += 1
        return timed(self.shard.observe, self._step, batch_of(prompts, logits))

    def fill(self, prompts: NDArray[np.int64], rows: int, per_step: int) -> NDArray[np.float32]:
        """Visit ``prompts`` (p,) until each has ``rows``; return their logits (p, rows, N)."""
        filled = []
        for visited in np.split(prompts, range(per_step, len(prompts), per_step)):
            visits = [self.rows(visited) for _ in range(rows // ROWS)]
            for logits in visits:
                self.observe(visited, logits)
                self.shard.recluster()
            filled.append(np.concatenate(visits, axis=1))
        return np.concatenate(filled)

    def snapshot(self) -> None:
        """Take a snapshot and commit it."""
        commit_snapshot(self.paths, "benchmark", Snapshot(MemoryFormat(1, LAYERS, {}), self.shard.snapshot()))


def batch_of(prompts: NDArray[np.int64], logits: NDArray[np.float32]) -> pa.RecordBatch:
    """Return the rows of a step that visits ``prompts`` (p,), with logits (p, 8, N)."""
    keys = [key(prompt) for prompt in prompts.tolist() for _ in range(ROWS)]
    return make_rows(np.arange(len(keys)), keys, np.zeros(len(keys), bool), logits.reshape(-1, LAYERS))


def reference_vectors(logits: NDArray[np.float32]) -> Floats:
    """Return unit vectors (..., N / 2) of the last half of the layers."""
    vectors = logits[..., LAYERS // 2 :].astype(np.float64)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def reference_votes(new: Floats, stored: Floats, labels: NDArray[np.int32]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return labels (p * m,) of ``new`` (p, m, d) by 3 votes of ``stored`` (p, n, d), and where 2 of the 3 agree."""
    found, clear = [], []
    for vectors, known, known_labels in zip(new, stored, labels):
        for vector in vectors:
            model = NearestNeighbors(n_neighbors=3, metric="cosine").fit(known)
            nearest = model.kneighbors(vector[None], return_distance=False)[0]
            candidates, votes = np.unique(known_labels[nearest], return_counts=True)
            found.append(candidates[votes.argmax()])
            clear.append(votes.max() > 1)
    return np.array(found), np.array(clear)


def reference_clustering(sets: Floats) -> None:
    """Cluster each of ``sets`` (p, n, d) with hdbscan's defaults."""
    for vectors in sets:
        hdbscan.HDBSCAN(min_cluster_size=2, min_samples=1).fit(vectors)


def measure_steps(sizes: Sizes, stored: int, rounds: int, folder: Path) -> Iterator[Line]:
    """Measure steps of prompts with ``stored`` rows each, others in every round; the first round is a warm-up."""
    memory = Memory(folder)
    visits = np.arange((rounds + 1) * sizes.per_step).reshape(rounds + 1, -1)
    histories = [reference_vectors(memory.fill(prompts, stored, sizes.per_step)) for prompts in visits]
    found: dict[str, list[float]] = defaultdict(list)
    for prompts, known in zip(visits, histories):
        labels = np.array([memory.shard.labels(key(prompt)) for prompt in prompts.tolist()])
        logits = memory.rows(prompts)
        new = reference_vectors(logits)
        milliseconds, answer = memory.observe(prompts, logits)
        found["step"].append(milliseconds)
        found["clustering"].append(1e3 * memory.shard.recluster())
        milliseconds, (voted, clear) = timed(reference_votes, new, known, labels)
        found["votes"].append(milliseconds)
        found["equal"].append(100 * float(np.mean(answer.label[clear] == voted[clear])))
        found["hdbscan"].append(timed(reference_clustering, np.concatenate([known, new], axis=1))[0])
    memory.shard.close()
    table = {name: values[1:] for name, values in found.items()}
    bounds = (20, 1 / 120) if stored == 160 else ()
    yield Line(f"step, {stored} stored", table["step"], "ms", table["votes"], *bounds)
    yield Line(f"its labels equal to the reference's where 2 of 3 agree, {stored} stored", table["equal"], "%")
    yield Line(f"clustering, {stored} stored", table["clustering"], "ms", table["hdbscan"], at_most_ratio=1 / 20)


def measure_visits(sizes: Sizes, rounds: int, folder: Path) -> Iterator[Line]:
    """Count all 16 responses to each prompt, beside the same rows without counts, and alone; labels are equal."""
    plain, counted, alone = (Memory(folder / name) for name in ("plain", "counted", "alone"))
    prompts = np.arange(sizes.per_step)
    counts = {key(prompt): (16 - ROWS, 16) for prompt in prompts.tolist()}
    none = batch_of(prompts[:0], plain.rows(prompts[:0]))
    found: dict[str, list[float]] = defaultdict(list)
    for step in range(1, 3 * rounds + 2):
        rows = batch_of(prompts, plain.rows(prompts))
        asked = [("plain", plain, (rows,)), ("counted", counted, (rows, counts)), ("alone", alone, (none, counts))]
        answers = {}
        for name, memory, given in asked[:: 1 if step % 2 else -1]:
            milliseconds, answers[name] = timed(memory.shard.observe, step, *given)
            found[name].append(milliseconds)
            memory.shard.recluster()
        assert np.array_equal(answers["plain"].label, answers["counted"].label)
    for memory in (plain, counted, alone):
        memory.shard.close()
    prompts_and_responses = f"{sizes.per_step} prompts with 16 responses"
    yield Line(f"step with visits, {prompts_and_responses}", found["counted"][1:], "ms", found["plain"][1:])
    yield Line(f"visits alone, {prompts_and_responses}", found["alone"][1:], at_most=5)


def measure_snapshot(sizes: Sizes, rounds: int, folder: Path) -> Line:
    """Commit a snapshot after ten steps, and dump the rows of the first steps to a JSON file."""
    memory, generator = Memory(folder), np.random.default_rng(1)
    vectors = reference_vectors(memory.fill(np.arange(sizes.snapshot_prompts), 16, sizes.per_step))
    dumped = {
        key(prompt): {"features": features.tolist(), "labels": memory.shard.labels(key(prompt)).tolist()}
        for prompt, features in enumerate(vectors)
    }
    memory.snapshot()
    ours, reference = [], []
    for _ in range(rounds):
        for _ in range(SNAPSHOT_STEPS):
            prompts = generator.permutation(sizes.snapshot_prompts)[: sizes.per_step]
            memory.observe(prompts, memory.rows(prompts))
        ours.append(timed(memory.snapshot)[0])
        with (folder / "reference.json").open("w", encoding="utf-8") as file:
            reference.append(timed(json.dump, dumped, file)[0])
    memory.shard.close()
    return Line(f"snapshot, {sizes.snapshot_prompts:,} prompts of 16 rows", ours, "ms", reference)


def restart(folder: Path, number: int, prompts: NDArray[np.int64]) -> float:
    """Return milliseconds from nothing to the answer of the first step, in a new process."""
    memory = Memory(folder, seed=number, step=10**6 + number)
    opened, _ = timed(memory.shard.stats)
    milliseconds, _ = memory.observe(prompts, memory.rows(prompts))
    memory.shard.close()
    return opened + milliseconds


def measure_restart(sizes: Sizes, rounds: int, folder: Path) -> Line:
    """Restart a memory whose rows were never merged."""
    memory, generator = Memory(folder), np.random.default_rng(1)
    memory.fill(np.arange(sizes.restart_prompts), 16, 2 * sizes.restart_prompts // sizes.restart_files)
    memory.shard.close()
    found = []
    for number in range(rounds):
        prompts = generator.permutation(sizes.restart_prompts)[: sizes.per_step]
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            process.submit(abs, 0).result()  # everything is imported
            found.append(process.submit(restart, folder, number, prompts).result())
    rows, files = 16 * sizes.restart_prompts, sizes.restart_files
    return Line(f"restart, {rows:,} rows in {files:,} files", found, at_most=2_000)


def main(command_line: list[str] | None = None) -> None:
    """Print the table."""
    arguments = make_parser(__doc__, rounds=5).parse_args(command_line)
    sizes, rounds = QUICK if arguments.quick else FULL, arguments.rounds
    print(machine(), HEADER, sep="\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for stored in sizes.stored:
            print(*measure_steps(sizes, stored, rounds, folder / f"stored-{stored}"), sep="\n", flush=True)
        print(*measure_visits(sizes, rounds, folder / "visits"), sep="\n", flush=True)
        print(measure_snapshot(sizes, rounds, folder / "snapshot"), flush=True)
        print(measure_restart(sizes, rounds, folder / "restart"), flush=True)


if __name__ == "__main__":
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    main()
