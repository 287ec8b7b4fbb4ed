"""Write prompts of runs as a data set, to train on or to evaluate, for this project and for other trainers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from meds_openrlhf.chat_templates import messages_in
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.loader import RunConfig
from meds_openrlhf.data.prompt_texts import around_texts, ids_of_data_set, without_template
from meds_openrlhf.options import Trainer
from meds_openrlhf.outputs import write_output
from meds_openrlhf.report.suspects import Gradings
from meds_openrlhf.report.themes import RunsThemes
from meds_openrlhf.rollouts.run import RolloutLog
from meds_openrlhf.runs.settings import config_of

SUSPECTS, UNSOLVED = "suspects", "unsolved"
VERL_SOURCE = "lighteval/MATH"  # verl grades it by the last box of the response


def keys_of(what: str, gradings: Gradings | None, themes: RunsThemes | None) -> set[str]:
    """Return the keys of the prompts of ``what``: "suspects", "unsolved", or a theme by its name or place from 1.

    Raises ConfigError for an unknown theme.
    """
    if gradings is not None and what in (SUSPECTS, UNSOLVED):
        return {found.key for found in (gradings.suspects if what == SUSPECTS else gradings.unsolved)}
    names = themes.names if themes else []
    number = names.index(what) if what in names else int(what) - 1 if re.fullmatch(r"[0-9]{1,9}", what) else -1
    if themes is None or not 0 <= number < len(names):
        known = ", ".join(f"{place} ({name})" for place, name in enumerate(names, start=1))
        hint = f"Name one of: {known}." if names else "There are none: no log has a text of an error that recurs."
        hint += f" Or {SUSPECTS}, or {UNSOLVED}."
        raise ConfigError("--export", what, f"is not a theme of the report. {hint}")
    of_runs = ((run.atlas.rollouts, run.at(number)) for run in themes.runs)
    return {log.prompts[prompt] for log, rows in of_runs for prompt in np.unique(log.prompt[rows]).tolist()}


def require_suffix(output: Path, trainer: Trainer) -> None:
    """Raise ConfigError if the file's name ends as another trainer's file would."""
    kind, others = ("Parquet", (".json", ".jsonl")) if trainer == "verl" else ("lines of JSON", (".parquet",))
    if output.suffix in others:
        raise ConfigError("--export", str(output), f"for {trainer} are {kind}. Name a file that does not end so.")


def export_prompts(keys: Iterable[str], logs: Iterable[RolloutLog], output: Path, trainer: Trainer) -> int:
    """Write the prompts with these keys, each once, in the order of the logs, and return how many they are.

    For ``trainer`` "meds", lines with ``id`` (the data set's, else the key), ``prompt`` and ``answer``; for "trl" the
    same with the prompt as a conversation; for "verl" Parquet with verl's columns. Raises ConfigError if a log
    that has a prompt has no right answers, or as `require_suffix` and `write_output`.
    """
    wanted, rows = set(keys), dict[str, dict[str, str]]()
    for log in logs:
        config = config_of(log.paths)
        texts, ids = _without_template(log, config), ids_of_data_set(config)
        for key in (key for key in log.prompts if key in wanted and key not in rows):
            answer = log.truths[key]
            if answer is None:
                hint = "has no right answers. Of a training they are data.label_key; of a dump, make its atlas again, "
                hint += "in another folder, with --columns truth=COLUMN."
                raise ConfigError("RUN", str(log.paths.root), hint)
            rows[key] = {"id": ids.get(texts[key], key), "prompt": texts[key], "answer": answer}
    require_suffix(output, trainer)
    write_output(output, _parquet(rows.values()) if trainer == "verl" else _lines(rows.values(), trainer), "--export")
    return len(rows)


def _lines(rows: Iterable[dict[str, str]], trainer: Trainer) -> bytes:
    shown = (row if trainer == "meds" else {**row, "prompt": messages_in(row["prompt"])} for row in rows)
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in shown).encode("utf-8", "backslashreplace")


def _parquet(rows: Iterable[dict[str, str]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([_of_verl(number, row) for number, row in enumerate(rows)]), sink)
    return bytes(sink.getvalue().to_pybytes())


def _of_verl(number: int, row: dict[str, str]) -> dict[str, Any]:
    return {
        "data_source": VERL_SOURCE,
        "prompt": messages_in(row["prompt"]),
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": row["answer"]},
        "extra_info": {"index": number, "id": row["id"]},
    }


def _without_template(log: RolloutLog, config: RunConfig | None) -> dict[str, str]:
    """The logged prompts as they are in the run's data set, by key."""
    if config and config.openrlhf.get("data.apply_chat_template"):
        return without_template(log.prompt_texts)
    head, tail = around_texts(config)
    return {key: text.removeprefix(head).removesuffix(tail) for key, text in log.prompt_texts.items()}
