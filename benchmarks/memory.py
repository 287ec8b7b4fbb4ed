"""What the memory costs a training step, compared with a plain implementation of the reference, on one core.

A step visits 512 prompts with 8 wrong rollouts each, 28 layers, of which the last 14 are clustered. A prompt's errors
are of five kinds; two fifths of the rows are word-for-word repeats. The parts:

- step: `MemoryShard.observe`, for which a training step waits, and one fitted nearest-neighbour search per new row;
- clustering: `MemoryShard.recluster` of the 512 prompts, while the policy trains, and hdbscan set by set.

Both sides alternate in rounds. A table row holds medians over the rounds, quartiles in brackets; ratios are per round.
Files are in the page cache, compiled code is in numba's. From the repository's root:

    python -m benchmarks.memory
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":  # before numpy, whose libraries read these once; child processes inherit them
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    os.environ["NUMBA_NUM_THREADS"] = "1"

import hdbscan
import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from benchmarks.table import HEADER, Line, machine, make_parser, timed
from meds_openrlhf.memory.rows import Sharding, make_rows
from meds_openrlhf.memory.shard import MemoryShard, ShardSettings
from meds_openrlhf.paths import MemoryPaths

Floats = NDArray[np.float64]

LAYERS, MODES, ROWS = 28, 5, 8  # ROWS: of a prompt in one visit
REPEATED = 0.4  # of the rows


FULL, QUICK = (512, (16, 64, 160, 400)), (8, (16,))  # prompts of a step, and rows per prompt before it


class Memory:
    """A shard below ``folder`` and a stream of rollouts."""

    def __init__(self, folder: Path) -> None:
        self.paths = MemoryPaths(folder)
        self.shard = MemoryShard(self.paths, Sharding(0, 1), ShardSettings(layers=LAYERS))
        self._modes = np.random.default_rng(0).normal(scale=4, size=(512, MODES, LAYERS))  # of prompts modulo 512
        self._generator = np.random.default_rng(0)
        self._step = 0

    def rows(self, prompts: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return layer logits (p, 8, N) of one visit of ``prompts`` (p,)."""
        shape = (len(prompts), ROWS)
        modes = self._modes[prompts[:, None] % len(self._modes), self._generator.integers(MODES, size=shape)]
        scatter = 0.3 * (self._generator.random(shape) > REPEATED)
        return (modes + scatter[..., None] * self._generator.normal(size=modes.shape)).astype(np.float32)

    def observe(self, prompts: NDArray[np.int64], logits: NDArray[np.float32]) -> float:
        """Observe ``logits`` (p, 8, N) as the next step; return its milliseconds, without making the batch."""
        self._step += 1
        keys = [f"{prompt:032x}" for prompt in prompts.tolist() for _ in range(ROWS)]
        batch = make_rows(np.arange(len(keys)), keys, np.zeros(len(keys), bool), logits.reshape(-1, LAYERS))
        return timed(self.shard.observe, self._step, batch)[0]

    def fill(self, prompts: NDArray[np.int64], rows: int) -> NDArray[np.float32]:
        """Visit ``prompts`` (p,) until each has ``rows``; return their logits (p, rows, N)."""
        visits = [self.rows(prompts) for _ in range(rows // ROWS)]
        for logits in visits:
            self.observe(prompts, logits)
            self.shard.recluster()
        return np.concatenate(visits, axis=1)


def reference_vectors(logits: NDArray[np.float32]) -> Floats:
    """Return unit vectors (..., N / 2) of the last half of the layers."""
    vectors = logits[..., LAYERS // 2 :].astype(np.float64)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def reference_votes(new: Floats, stored: Floats, labels: NDArray[np.int32]) -> list[int]:
    """Return labels (p * m,) of ``new`` (p, m, d) by 3 votes of ``stored`` (p, n, d); the smallest of a tie."""
    found = []
    for vectors, known, known_labels in zip(new, stored, labels):
        for vector in vectors:
            model = NearestNeighbors(n_neighbors=3, metric="cosine").fit(known)
            votes = known_labels[model.kneighbors(vector[None], return_distance=False)[0]].tolist()
            found.append(min(votes, key=lambda label: (-votes.count(label), label)))
    return found


def reference_clustering(sets: Floats) -> None:
    """Cluster each of ``sets`` (p, n, d) with hdbscan's defaults."""
    for vectors in sets:
        hdbscan.HDBSCAN(min_cluster_size=2, min_samples=1).fit(vectors)


def measure_steps(per_step: int, stored: int, rounds: int, folder: Path) -> Iterator[Line]:
    """Measure steps of prompts with ``stored`` rows each, others in every round; the first round is a warm-up."""
    memory = Memory(folder)
    visits = np.arange((rounds + 1) * per_step).reshape(rounds + 1, -1)
    histories = [reference_vectors(memory.fill(prompts, stored)) for prompts in visits]
    found: dict[str, list[float]] = defaultdict(list)
    for prompts, known in zip(visits, histories):
        labels = np.array([memory.shard.labels(f"{prompt:032x}") for prompt in prompts.tolist()])
        logits = memory.rows(prompts)
        new = reference_vectors(logits)
        found["step"].append(memory.observe(prompts, logits))
        found["clustering"].append(1e3 * memory.shard.recluster())
        found["votes"].append(timed(reference_votes, new, known, labels)[0])
        found["hdbscan"].append(timed(reference_clustering, np.concatenate([known, new], axis=1))[0])
    memory.shard.close()
    table = {name: values[1:] for name, values in found.items()}
    bounds = (20, 1 / 120) if stored == 160 else ()
    yield Line(f"step, {stored} stored", table["step"], "ms", table["votes"], *bounds)
    yield Line(f"clustering, {stored} stored", table["clustering"], "ms", table["hdbscan"], at_most_ratio=1 / 20)


def main(command_line: list[str] | None = None) -> None:
    """Print the table."""
    arguments = make_parser(__doc__, rounds=5).parse_args(command_line)
    per_step, all_stored = QUICK if arguments.quick else FULL
    print(machine(), HEADER, sep="\n")
    with tempfile.TemporaryDirectory() as name:
        for stored in all_stored:
            print(*measure_steps(per_step, stored, arguments.rounds, Path(name, str(stored))), sep="\n", flush=True)


if __name__ == "__main__":
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    main()
