"""The card of a data set's folder, which names the files that are loaded: they have to be in the folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import MOST_TEXT, read_file
from meds_openrlhf.yaml_text import parse_yaml

CARDS = ("README.md", ".huggingface.yaml")  # which `datasets` reads
MOST_NODES = 1_000_000  # of a set with thousands of configurations
_HEAD = re.compile(r"\s*---[ \t]*\r?\n(.*?)\r?\n---", re.DOTALL)


def require_own_files(folder: Path, field: str) -> None:
    """Raise ConfigError, naming ``field``, if a card in ``folder`` names files outside of it, or cannot be read."""
    for card in (folder / name for name in CARDS if (folder / name).exists()):
        try:
            text = read_file(card, MOST_TEXT).decode()
            head = _HEAD.match(text) if card.suffix == ".md" else None
            content = parse_yaml(head[1] if head else "" if card.suffix == ".md" else text, MOST_NODES)
        except (OSError, ValueError) as error:
            raise ConfigError(field, str(folder), f"has a {card.name} that cannot be read ({error}).") from error
        for name in _files_in(content):
            if "://" in name or Path(name).is_absolute() or ".." in Path(name).parts:
                hint = f"has a {card.name} that names {name}, which is not in the folder. Remove that, or name a file."
                raise ConfigError(field, str(folder), hint)


def _files_in(content: Any, named: bool = False) -> Iterator[str]:
    """All texts below ``data_files``, ``data_dir`` and ``path``, at any depth."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _files_in(value, named or key in ("data_files", "data_dir", "path"))
    elif isinstance(content, list):
        for item in content:
            yield from _files_in(item, named)
    elif named and isinstance(content, str):
        yield content
