"""What the prompts behind the memory's keys say, where the run's data set is a file at hand."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from meds_openrlhf.config.loader import RunConfig
from meds_openrlhf.memory.rows import prompt_key

_MARKER = re.compile(r"<\|\w+\|>")  # <|im_end|>
OPENRLHF_INPUT_KEY = "input"  # its default for data.input_key


@dataclass(frozen=True)
class PromptTexts:
    """Texts of prompts by key, and the lines that all texts of the data set begin and end with: a template's mostly."""

    by_key: dict[str, str]
    shared: str = ""
    shared_end: str = ""

    def own(self, key: str) -> str:
        """A prompt's text without shared lines and chat markers, in one line; empty for a key that is not there."""
        text = self.by_key.get(key, "").removeprefix(self.shared).removesuffix(self.shared_end)
        return " ".join(_MARKER.sub(" ", text).split())


def prompt_texts(config: RunConfig, keys: Collection[str]) -> PromptTexts:
    """Texts of those of ``keys`` that are found in the run's data set (a local JSON Lines file).

    A row's key is its id where the run names a column of ids, else the hash of its text as the engines get it; that is
    found for plain texts and input templates, not for chat templates.
    """
    flags, column = config.openrlhf, config.meds.memory.prompt_id_key
    path = Path(str(flags.get("data.prompt_dataset")))
    if path.suffix not in (".jsonl", ".json") or not path.is_file():
        return PromptTexts({})
    texts: dict[str, str] = {}
    shared: str | None = None
    end: str | None = None
    for row in _json_rows(path):
        text = row.get(str(flags.get("data.input_key", OPENRLHF_INPUT_KEY)))
        if not isinstance(text, str):
            continue
        key = str(row.get(column)) if column else prompt_key(_as_sent(text, flags.get("data.input_template")))
        shared = text if shared is None else _common_lines(shared, text)
        end = text if end is None else _common_last_lines(end, text)
        if key in keys:
            texts[key] = text
    return PromptTexts(texts, shared or "", end or "")


def _common_lines(one: str, other: str) -> str:
    """The whole lines that both texts begin with."""
    pairs = zip(one.splitlines(keepends=True), other.splitlines(keepends=True))
    return "".join(line for line, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _common_last_lines(one: str, other: str) -> str:
    """The whole lines that both texts end with."""
    pairs = zip(reversed(one.splitlines(keepends=True)), reversed(other.splitlines(keepends=True)))
    return "".join(reversed([line for line, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]))


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
