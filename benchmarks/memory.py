"""What the memory costs a training step, beside the reference's algorithm written plainly, on one core.

A step visits 512 prompts with 8 wrong rollouts each, 28 layers, of which the last 14 are clustered. A prompt's errors
are of five kinds; two fifths of the rows are word-for-word repeats of one. The parts:

- step: `MemoryShard.observe` (cluster labels, rows written and synced, answer) beside one fitted nearest-neighbour
  search per new vector; what a training step waits for.
- clustering: `MemoryShard.recluster` of the 512 prompts beside hdbscan set by set; it runs while the policy trains.
  `robust alone` and `reference alone` are `cluster_sets` under those presets, without fetching rows.
- snapshot: `MemoryShard.snapshot` and its manifest beside a JSON dump of the whole memory.
- restart: a new process opens a memory and answers its first step.
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
import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before numpy is there, whose libraries read these once; child processes inherit them
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    os.environ["NUMBA_NUM_THREADS"] = "1"

import hdbscan
import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from benchmarks.memory_processes import measure_growth, measure_restart, measure_scale
from benchmarks.memory_stream import LAYERS, QUICK, Memory, Sizes, in_random_steps, in_steps, key
from benchmarks.timing_table import Floats, Line, timed
from meds_openrlhf.config.method import PRESETS
from meds_openrlhf.memory.clustering import cluster_sets
from meds_openrlhf.memory.snapshot import MemoryFormat, Snapshot, commit_snapshot

PARTS = ("step", "clustering", "snapshot", "restart", "growth")

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
            result[preset] = timed(cluster_sets, flat, offsets, PRESETS[preset])[0]
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
            parser.error(f"--parts: {part!r} is not one of {', '.join(PARTS)}")
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
