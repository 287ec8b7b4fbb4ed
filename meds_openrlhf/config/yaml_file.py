"""YAML files as flat mappings of dotted keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from meds_openrlhf.config.errors import ConfigError


def read_mapping(path: Path, name: str) -> dict[str, Any]:
    """Read the mapping in ``path``. Raises ConfigError about the argument ``name`` if there is none to read."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(name, str(path), f"cannot be read ({error.strerror}); name a YAML file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(name, str(path), f"is no valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(name, str(path), "holds no mapping; it should begin with a key such as `meds:`")
    return content


def flatten(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Turn ``{"a": {"b": 1}}`` into ``{"a.b": 1}``; keys may themselves be dotted."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{name}."))
        elif value is not None or prefix or "." in name:  # skip an empty top-level section
            flat[name] = value
    return flat
