"""Prometheus gauges for each shard, which Ray exports from the process of the pool."""

from __future__ import annotations

from typing import Any

from ray.util.metrics import Gauge

from meds_openrlhf.memory.shard import ShardAnswer

GAUGES = {
    "meds_memory_rows": "Rows that a shard of the memory holds.",
    "meds_memory_prompts": "Prompts that have rows.",
    "meds_memory_bytes": "Bytes of its Arrow files.",
    "meds_memory_owed_prompts": "Prompts (of one verdict) that wait to be clustered.",
    "meds_memory_wait_seconds": "How long the last step waited for clusterings that should have been over.",
    "meds_memory_assign_seconds": "Labelling the last step's rows.",
    "meds_memory_append_seconds": "Making the last step's rows durable.",
    "meds_memory_cluster_seconds": "The last clustering that has ended.",
}


class PoolMetrics:
    """One gauge for each entry of `GAUGES`, with the labels ``run`` and ``shard``."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._gauges: dict[str, Any] = {
            name: Gauge(name, description=text, tag_keys=("run", "shard")) for name, text in GAUGES.items()
        }

    def step(self, shard: int, answer: ShardAnswer) -> None:
        """Set the gauges from a shard's answer to a step."""
        values = {
            "rows": answer.stats.rows,
            "prompts": answer.stats.prompts,
            "bytes": answer.stats.bytes,
            "owed_prompts": answer.stats.owed,
            "wait_seconds": answer.wait_seconds,
            "assign_seconds": answer.assign_seconds,
            "append_seconds": answer.append_seconds,
        }
        for name, value in values.items():
            self._set(name, shard, value)

    def clustered(self, shard: int, seconds: float) -> None:
        """Record that a shard finished clustering all waiting groups."""
        self._set("cluster_seconds", shard, seconds)

    def _set(self, name: str, shard: int, value: float) -> None:
        self._gauges[f"meds_memory_{name}"].set(value, tags={"run": self._run, "shard": str(shard)})
