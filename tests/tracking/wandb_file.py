"""Reads W&B's own file of a run: LevelDB's log format, with W&B's records in it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

_BLOCK = 32768
_HEADER = struct.Struct("<IHB")  # checksum, length, and whether it is a whole record (1) or its first to last part


def read_wandb_file(path: Path) -> list[Any]:
    """All records of ``run-ID.wandb``."""
    content, records, part, at = path.read_bytes(), [], b"", 7
    assert content[:4] == b":W&B"
    while at + _HEADER.size <= len(content):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER.size:
            at += left
            continue
        _, length, kind = _HEADER.unpack_from(content, at)
        at += _HEADER.size
        part += content[at : at + length]
        at += length
        if kind in (1, 4):
            records.append(wandb_internal_pb2.Record.FromString(part))
            part = b""
    return records


def records_of(records: list[Any], kind: str) -> list[Any]:
    return [getattr(record, kind) for record in records if record.WhichOneof("record_type") == kind]


def history_of(records: list[Any]) -> list[dict[str, Any]]:
    """What was logged, record by record."""
    history = []
    for record in records_of(records, "history"):
        history.append({})
        for item in record.item:
            *outer, name = item.nested_key or [item.key]
            place = history[-1]
            for key in outer:
                place = place.setdefault(key, {})
            place[name] = json.loads(item.value_json)
    return history


def axes_of(records: list[Any]) -> dict[str, str]:
    """The axis of each metric for which one is defined."""
    return {metric.name or metric.glob_name: metric.step_metric for metric in records_of(records, "metric")}
