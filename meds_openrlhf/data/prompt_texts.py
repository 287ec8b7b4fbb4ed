"""The texts of the prompts that the memory's keys stand for, without the template around them."""

from __future__ import annotations

import os.path
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from string import Formatter
from typing import Any

from meds_openrlhf.chat_templates import plain
from meds_openrlhf.config.loader import RunConfig
from meds_openrlhf.files import lines_of, open_file
from meds_openrlhf.json_text import parse_json
from meds_openrlhf.memory.rows import prompt_key


def questions(keys: Collection[str], logged: Mapping[str, str], config: RunConfig | None) -> dict[str, str]:
    """The prompts' texts by key, without template: from the rollout log, or else from the run's local data set."""
    wanted = set(keys)
    if logged:
        return without_template({key: text for key, text in logged.items() if key in wanted})
    texts = without_template(texts_of_data_set(config))
    return {key: text for key, text in texts.items() if key in wanted}


def texts_of_data_set(config: RunConfig | None) -> dict[str, str]:
    """The texts of the run's data set, a local JSON Lines file, by prompt key; empty for any other data set.

    A key is the hash of a text as sent to the engines, which is known for plain texts and input templates; with a chat
    template the result is empty.
    """
    flags = config.openrlhf if config else {}
    if flags.get("data.apply_chat_template"):
        return {}
    head, tail = around_texts(config)
    texts = {}
    for text, _ in _rows_of_data_set(config):
        with suppress(ValueError):  # half of a character, which no engine was sent
            texts[prompt_key(f"{head}{text}{tail}")] = text
    return texts


def around_texts(config: RunConfig | None) -> tuple[str, str]:
    """What a run's input template sends before and after a text, which it formats; nothing unless it has one plain {}.

    The template is read and not formatted: a stranger's could ask for a text of any width.
    """
    template = config.openrlhf.get("data.input_template") if config else None
    with suppress(ValueError):  # no template
        parts = [*Formatter().parse(str(template or "{}"))]
        fields = [place for place, (_, *field) in enumerate(parts) if field in (["", "", None], ["0", "", None])]
        if len(fields) == sum(name is not None for _, name, *_ in parts) == 1:
            literals, behind = [literal for literal, *_ in parts], fields[0] + 1
            return "".join(literals[:behind]), "".join(literals[behind:])
    return "", ""


def ids_of_data_set(config: RunConfig | None) -> dict[str, str]:
    """The column ``id`` of the run's data set by the prompt's text, for the same files."""
    return {text: str(row["id"]) for text, row in _rows_of_data_set(config) if isinstance(row.get("id"), (str, int))}


def _rows_of_data_set(config: RunConfig | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the texts and objects of a local JSON Lines file; lines without an object are skipped."""
    flags = config.openrlhf if config else {}
    path = Path(str(flags.get("data.prompt_dataset")))
    if path.suffix not in (".jsonl", ".json") or not path.is_file():
        return
    column = str(flags.get("data.input_key", "input"))  # OpenRLHF's default
    with open_file(path) as file:
        for line in lines_of(file, path):
            with suppress(ValueError):  # no JSON
                row = parse_json(line.decode(errors="replace"))
                if isinstance(row, dict) and isinstance(row.get(column), str):
                    yield row[column], row


def without_template(texts: dict[str, str]) -> dict[str, str]:
    """Remove the lines that all texts begin and end with, and chat markers."""
    distinct = sorted(set(texts.values()))
    if len(distinct) < 2:
        return {key: plain(text) for key, text in texts.items()}
    head = os.path.commonprefix(distinct)  # noqa: RUF071  (of texts, not of paths)
    head = head[: head.rfind("\n") + 1]
    tail = os.path.commonprefix([text[::-1] for text in distinct])[::-1]  # noqa: RUF071
    tail = tail[tail.find("\n") :] if "\n" in tail else ""
    return {key: plain(text[len(head) :].removesuffix(tail)) or text for key, text in texts.items()}
