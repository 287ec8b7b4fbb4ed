"""Replays recorded rollouts through a memory with other settings, without training.

The replay uses a real memory shard to store, cluster and answer, in a temporary folder.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.features.settings import features_of_rows, transform_of
from meds_openrlhf.files import published_file
from meds_openrlhf.memory.assignment import UNASSIGNED
from meds_openrlhf.memory.rows import Sharding, make_rows, remembered_rows
from meds_openrlhf.memory.shard import MemoryShard, ShardSettings, ShardStats
from meds_openrlhf.memory.tools.recorded_rows import Recording
from meds_openrlhf.paths import MemoryPaths
from meds_openrlhf.shaping.penalty import cluster_penalty

ANSWER_FIELDS = [
    pa.field("label", pa.int64()),
    pa.field("cluster_size", pa.int64(), nullable=False),
    pa.field("penalty", pa.float32(), nullable=False),
]


@dataclass(frozen=True)
class ReplaySummary:
    """Counts of rollouts: all, ``remembered``, labelled (``assigned``), ``penalized``, with non-finite logits.

    ``penalty`` is the sum over all rollouts; ``clusters`` and ``noise`` are from the last clustering.
    """

    rows: int
    remembered: int
    assigned: int
    penalized: int
    broken: int
    penalty: float
    clusters: int
    noise: int


def replay(recording: Recording, settings: MedsSettings, target: Path) -> ReplaySummary:
    """Write the rows of ``recording`` to ``target``, an Arrow IPC file, with label, cluster size and penalty.

    The added columns are ``label`` (int64; -1 for noise; null for a rollout without a feature, with a verdict that is
    not remembered, or on a first visit), ``cluster_size`` (int64) and ``penalty`` (float32, 0 without a label). Rows
    keep their order; the labels of a step depend on earlier steps only. Raises ConfigError if the rows do not match the
    settings.
    """
    rows = len(recording.step)
    finite = np.isfinite(recording.layer_logits).all(axis=1)
    chosen = finite & remembered_rows(recording.correct[recording.place], settings.memory.remember)
    labels, sizes = np.full(rows, UNASSIGNED, np.int64), np.zeros(rows, np.int64)
    stats = _answer(recording, chosen, settings, labels, sizes)
    penalties = cluster_penalty(sizes, alpha=settings.penalty.alpha, beta=settings.penalty.beta)
    names = [field.name for field in ANSWER_FIELDS]
    table = recording.table.select([name for name in recording.table.column_names if name not in names])
    answers = (pa.array(labels, mask=labels == UNASSIGNED), pa.array(sizes), pa.array(penalties.astype(np.float32)))
    for field, answer in zip(ANSWER_FIELDS, answers):
        table = table.append_column(field, answer)
    with (
        published_file(target) as path,
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    return ReplaySummary(
        rows=rows,
        remembered=int(chosen.sum()),
        assigned=int((labels != UNASSIGNED).sum()),
        penalized=int((penalties > 0).sum()),
        broken=int((~finite).sum()),
        penalty=float(penalties.sum()),
        clusters=stats.clusters,
        noise=stats.noise,
    )


def _answer(
    recording: Recording,
    chosen: NDArray[np.bool_],
    settings: MedsSettings,
    labels: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> ShardStats:
    """Fill labels and sizes (n,) of the ``chosen`` rows (m,) with logits; return the memory's contents at the end."""
    layers = recording.layer_logits.shape[1]
    if not chosen.any():
        return ShardStats()
    transform = transform_of(features_of_rows(settings.features, settings.memory), layers)
    shard_settings = ShardSettings(layers=layers, transform=transform, method=settings.memory.method)
    with (
        tempfile.TemporaryDirectory(prefix="meds-replay-") as folder,
        closing(MemoryShard(MemoryPaths(Path(folder)), Sharding(0, 1), shard_settings)) as shard,
    ):
        for number, step in enumerate(recording.steps(), 1):  # the recording's numbers need not rise by one
            logits, places = recording.layer_logits[step][chosen[step]], recording.place[step][chosen[step]]
            prompts = [recording.prompt[place] for place in places]
            answer = shard.observe(number, make_rows(places, prompts, recording.correct[places], logits))
            labels[answer.sample], sizes[answer.sample] = answer.label, answer.size
        shard.recluster()
        return shard.stats()
