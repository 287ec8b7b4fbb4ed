"""The format that identifies a memory, and the manifests of its snapshots: small JSON files, committed by rename."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import write_atomically
from meds_openrlhf.json_text import parse_json
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.segment import SegmentState
from meds_openrlhf.paths import SEGMENT_PATH, MemoryPaths

FORMAT_VERSION = 2
# Takes the place of the model if rows are final answers.
ANSWERS = {"rows": "final answers"}


@dataclass(frozen=True)
class MemoryFormat:
    """The format of a memory's rows, fixed when the memory is created.

    ``model`` identifies the policy (architecture, layers, sizes), because logits of different models are not
    comparable. ``features`` records how rows are computed and compared (settings of ``meds.features``), because other
    variants give other clusters. ``shards`` may change between starts. ``step_offset`` is the last step of the memory
    that this one was branched from; its own steps are counted from there.
    """

    shards: int
    layers: int
    model: dict[str, Any]
    features: dict[str, Any] = field(default_factory=dict)
    step_offset: int = 0
    format_version: int = FORMAT_VERSION

    @property
    def holds_answers(self) -> bool:
        """Whether rows are final answers, of any model, instead of layer logits."""
        return self.model == ANSWERS

    def require_match(self, other: MemoryFormat, folder: Path, setting: str = "meds.run_dir") -> None:
        """Raise ConfigError, naming the field, unless a memory of this format can continue with the format ``other``.

        ``folder`` contains the memory; ``setting`` is the setting that names it.
        """
        if self.holds_answers != other.holds_answers:
            rows = "final answers; set it to answers" if self.holds_answers else "layer logits; choose another preset"
            hint = f"does not go with the memory in {folder}, whose rows are {rows}, or name another run_dir"
            raise ConfigError("meds.memory.preset", "answers" if other.holds_answers else "of logits", hint)
        if (self.model, self.layers) != (other.model, other.layers):
            model = f"another model or feature ({_describe(self.model)}), not of {_describe(other.model)}"
            hint = f"holds the memory of {model}; train with those, or name another memory"
            raise ConfigError(setting, str(folder), hint)
        for name, value in self.features.items():
            wanted = other.features.get(name, False)  # a setting that was removed since then is off
            if wanted != value:
                raise ConfigError(
                    f"meds.features.{name}",
                    wanted,
                    f"is not what the memory in {folder} was made with ({value!r}); set it so, or name another run_dir",
                )


def _describe(model: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in model.items())


def read_format(paths: MemoryPaths) -> MemoryFormat | None:
    """Return the format of the memory in ``paths``, or None if there is none yet."""
    if not paths.format.exists():
        return None
    return _parse_format(_parse_json(_read(paths.format), paths.format), paths.format)


def _parse_format(content: Any, source: Path | str) -> MemoryFormat:
    """Parse a format. Raises ConfigError for another format version, MemoryCorruptionError for invalid content."""
    version = content.get("format_version", FORMAT_VERSION) if isinstance(content, dict) else FORMAT_VERSION
    if version != FORMAT_VERSION:
        hint = f"holds a memory of format {version}, this program reads {FORMAT_VERSION}"
        raise ConfigError("meds.run_dir", str(source), hint)
    try:
        found = MemoryFormat(**content)
    except TypeError as error:
        raise MemoryCorruptionError(f"{source}: is no memory format ({error})") from error
    has_mappings = isinstance(found.model, dict) and isinstance(found.features, dict)
    if not has_mappings or not _are_counts(found.shards, found.layers, found.step_offset):
        raise MemoryCorruptionError(f"{source}: is no memory format (a field has the wrong type)")
    return found


def write_format(paths: MemoryPaths, memory_format: MemoryFormat) -> None:
    """Record the format of a new memory."""
    write_atomically(paths.format, json.dumps(asdict(memory_format), indent=2) + "\n")


@dataclass(frozen=True)
class Snapshot:
    """The memory at a checkpoint, as the states of all segments."""

    format: MemoryFormat
    config_hash: str
    segments: list[SegmentState]

    @property
    def rows(self) -> int:
        """The number of rows in all segments."""
        return sum(segment.rows for segment in self.segments)


def write_manifest(snapshot: Snapshot) -> str:
    """Return the text of a snapshot's manifest."""
    content = {
        "format": asdict(snapshot.format),
        "config_hash": snapshot.config_hash,
        "segments": [asdict(segment) for segment in snapshot.segments],
    }
    return json.dumps(content, indent=1) + "\n"


def commit_snapshot(paths: MemoryPaths, name: str, snapshot: Snapshot) -> None:
    """Atomically publish the manifest ``name``."""
    write_atomically(paths.snapshot(name), write_manifest(snapshot))


def read_snapshot(path: Path) -> Snapshot:
    """Read a manifest. Raises MemoryCorruptionError if it is missing, broken or names files outside its memory."""
    if not path.exists():
        raise MemoryCorruptionError(f"{path}: is missing, but a checkpoint names it; restore it from a backup")
    return parse_manifest(_read(path), path)


def parse_manifest(content: bytes, source: Path | str) -> Snapshot:
    """Return the snapshot that a manifest describes; errors name ``source``."""
    found = _parse_json(content, source)
    try:
        memory_format, config_hash = _parse_format(found["format"], source), found["config_hash"]
        states = [SegmentState(**segment) for segment in found["segments"]]
    except (KeyError, TypeError) as error:
        raise MemoryCorruptionError(f"{source}: is no snapshot manifest ({error!r})") from error
    for state in states:
        if not isinstance(state.name, str) or not SEGMENT_PATH.fullmatch(state.name):
            raise MemoryCorruptionError(f"{source}: names {state.name!r}, which is no segment of a memory")
        if not _are_counts(state.shards, state.bytes, state.rows, state.batches, state.crc32):
            raise MemoryCorruptionError(f"{source}: a count of {state.name} is no number")
    if len({state.name for state in states}) < len(states):
        raise MemoryCorruptionError(f"{source}: names a segment twice")
    return Snapshot(memory_format, config_hash, states)


def _are_counts(*numbers: Any) -> bool:
    return all(type(number) is int and number >= 0 for number in numbers)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MemoryCorruptionError(f"{path}: cannot be read ({error})") from error


def _parse_json(content: bytes, source: Path | str) -> dict[str, Any]:
    try:
        found = parse_json(content)
    except ValueError as error:
        raise MemoryCorruptionError(f"{source}: cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise MemoryCorruptionError(f"{source}: holds no JSON object")
    return found
