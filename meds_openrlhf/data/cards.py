"""The card of a data set's folder, or its saved state, which name the files that are loaded: they have to be in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import MOST_TEXT, read_file
from meds_openrlhf.json_text import parse_json
from meds_openrlhf.yaml_text import parse_yaml

CARDS = ("README.md", ".huggingface.yaml")  # which `datasets` reads
_KEYS = ("data_files", "data_dir", "path", "filename", "splits")
MOST_NODES = 200_000  # of a set with thousands of configurations
STATES = ("state.json", "dataset_dict.json")  # of a folder that `save_to_disk` wrote, and of its splits
_HEAD = re.compile(r"^\s*---(?:\r\n|\r|\n)([\S\s]*?)(?:\r\n|\r|\n)---[ \t]*(?:\r\n|\n|$)")  # as huggingface_hub's


def require_own_files(folder: Path, field: str) -> None:
    """Raise ConfigError, naming ``field``, if a file in ``folder`` names others outside of it, or cannot be read."""
    states = [path for name in STATES for path in (folder / name, *folder.glob(f"*/{name}"))]
    for path in (*(folder / name for name in CARDS), *states):
        try:
            content = _content(path) if path.exists() else None
        except (OSError, ValueError) as error:
            raise ConfigError(field, str(folder), f"has a {path.name} that cannot be read ({error}).") from error
        for name in _files_in(content):
            if ":" in name or Path(name).is_absolute() or ".." in Path(name).parts:
                hint = f"has a {path.name} that names {name}, which is not in the folder. Remove that, or name a file."
                raise ConfigError(field, str(folder), hint)


def _content(path: Path) -> Any:
    if path.name in STATES:
        return parse_json(read_file(path))
    text = read_file(path, MOST_TEXT).decode()
    head = _HEAD.match(text) if path.suffix == ".md" else None
    return parse_yaml(text if path.suffix != ".md" else head[1] if head else "", MOST_NODES)


def _files_in(content: Any, named: bool = False) -> Iterator[str]:
    """All texts below the keys that name files, at any depth."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _files_in(value, named or key in _KEYS)
    elif isinstance(content, list):
        for item in content:
            yield from _files_in(item, named)
    elif named and isinstance(content, str):
        yield content
