"""Named changes to a run's file: ablations and comparisons, many in one file, each a few settings."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.yaml_file import flatten, read_mapping

# The variant's name becomes part of the run folder's name.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def read_variant(reference: object) -> tuple[str, dict[str, Any]]:
    """The variant ``FILE:NAME``: its name, and its settings by dotted key. Raises ConfigError if there is none."""
    path, colon, name = str(reference).rpartition(":")
    if not colon or not path:
        raise ConfigError("--variant", reference, "is not FILE:NAME, e.g. configs/ablations.yaml:14-diff")
    variants = read_mapping(Path(path), "--variant")
    if name not in variants:
        close = difflib.get_close_matches(name, map(str, variants), n=1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(map(str, variants))}"
        raise ConfigError("--variant", reference, f"is not in {path}; {hint}")
    settings = variants[name]
    flat = flatten(settings) if isinstance(settings, dict) else {"": None}
    if not _NAME.fullmatch(name) or not all("." in key for key in flat):
        hint = "is no variant: a plain name, and below it settings by dotted key, e.g. meds.penalty.alpha"
        raise ConfigError("--variant", reference, hint)
    return name, flat
