"""What the prompts behind the memory's keys say, where the run's data set is a file at hand."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from meds_openrlhf.config.loader import RunConfig
from meds_openrlhf.memory.routing import prompt_key

OPENRLHF_INPUT_KEY = "input"  # its default for data.input_key


def prompt_texts(config: RunConfig, keys: Collection[str]) -> dict[str, str]:
    """Texts of those of ``keys`` that are found in the run's data set (a local JSON Lines file), by key.

    A row's key is its id where the run names a column of ids, else the hash of its text as the engines get it; that is
    found for plain texts and input templates, not for chat templates.
    """
    flags, column = config.openrlhf, config.meds.memory.prompt_id_key
    path = Path(str(flags.get("data.prompt_dataset")))
    if path.suffix not in (".jsonl", ".json") or not path.is_file():
        return {}
    texts = {}
    for row in _json_rows(path):
        text = row.get(str(flags.get("data.input_key", OPENRLHF_INPUT_KEY)))
        if not isinstance(text, str):
            continue
        key = str(row.get(column)) if column else prompt_key(_as_sent(text, flags.get("data.input_template")))
        if key in keys:
            texts[key] = text
    return texts


def _as_sent(text: str, template: Any) -> str:
    return template.replace("{}", text, 1) if isinstance(template, str) else text


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON Lines file; what is none is passed over."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield row
