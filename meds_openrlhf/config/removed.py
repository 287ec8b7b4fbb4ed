"""Settings of earlier versions that no longer exist, so that an old configuration gets an answer in one line."""

from __future__ import annotations

REMOVED = {
    "meds.memory.allow_single_cluster": "set meds.memory.preset: robust for true; for false leave it out",
    "meds.memory.archive": "copy the run folder instead; its memory is on the driver's node",
    "meds.memory.fsync": "leave it out; rows are always on disk before training goes on",
    "meds.memory.metric": "leave it out; distances are Euclidean",
    "meds.memory.min_samples": "leave it out; it is 1",
    "meds.memory.neighbor_metric": "leave it out; it is cosine",
    "meds.memory.neighbors": "leave it out; 3 neighbours vote",
    "meds.memory.on_lost": "leave it out; all shards are on the driver's node, beside their files",
    "meds.memory.selection_epsilon": 'set meds.memory.preset: robust for "auto"; for 0 leave it out',
    "meds.memory.ties": 'set meds.memory.preset: reference for "smallest"; for "nearest" leave it out',
    "meds.memory.window_rows": "leave it out; all rows take part",
    "meds.memory.window_visits": "leave it out; all rows take part",
}
"""What to do about each removed setting, by its full name."""
