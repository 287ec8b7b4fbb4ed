"""The first step of every command that reads a memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from meds_openrlhf.memory.compiled import interpret
from meds_openrlhf.paths import RunPaths

SMALL_MEMORY_BYTES = 250_000  # about 2,000 rows


def begin_reading(sources: Sequence[Path]) -> None:
    """Print the size of a large memory, or disable compilation for a small memory. Call before any memory import.

    The interpreter clusters a small memory in less time than compilation takes. ``sources`` are folders of runs or
    memories, or single Arrow files.
    """
    size = sum(file.stat().st_size for source in sources for file in _files(source))
    if size <= SMALL_MEMORY_BYTES:
        interpret()
    else:
        print(f"reading {', '.join(map(str, sources))}: {size / 1e6:.1f} MB of rows", file=sys.stderr, flush=True)


def _files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    return [file for folder in (source, RunPaths(source).memory.root) for file in folder.glob("shard-*/*.arrow")]
