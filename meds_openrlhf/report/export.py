"""Write the prompts of a theme as a data set, to train on or to evaluate."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.data.prompt_texts import without_template
from meds_openrlhf.outputs import write_output
from meds_openrlhf.report.themes import RunsThemes
from meds_openrlhf.rollouts.run import RolloutLog
from meds_openrlhf.runs.settings import config_of


def export_theme(themes: RunsThemes | None, theme: str, output: Path) -> None:
    """Write a line with ``id``, ``prompt`` and ``answer`` for each prompt that the runs have in a theme; `themes_of`.

    ``theme`` is its name, or its place in the order of size, from 1. Raises ConfigError for an unknown theme, or if a
    run's log has no right answers.
    """
    names = themes.names if themes else []
    number = names.index(theme) if theme in names else int(theme) - 1 if re.fullmatch(r"[0-9]{1,9}", theme) else -1
    if themes is None or not 0 <= number < len(names):
        known = ", ".join(f"{place} ({name})" for place, name in enumerate(names, start=1))
        hint = f"Name one of: {known}." if names else "There are none: no log has a text of an error that recurs."
        raise ConfigError("--export", theme, f"is not a theme of the report. {hint}")
    lines: dict[str, str] = {}  # by the prompt's key
    for run in themes.runs:
        log, texts = run.atlas.rollouts, _without_template(run.atlas.rollouts)
        for key in [log.prompts[prompt] for prompt in np.unique(log.prompt[run.at(number)]).tolist()]:
            if log.truths[key] is None:
                hint = "has a log without right answers (data.label_key). Name another run."
                raise ConfigError("RUN", str(log.paths.root), hint)
            line = json.dumps({"id": key, "prompt": texts[key], "answer": log.truths[key]}, ensure_ascii=False)
            lines.setdefault(key, f"{line}\n")
    write_output(output, "".join(lines.values()), "--export")


def _without_template(log: RolloutLog) -> dict[str, str]:
    """The logged prompts as they are in the run's data set, by key."""
    config, sent = config_of(log.paths), log.prompt_texts
    flags = config.openrlhf if config else {}
    if flags.get("data.apply_chat_template"):
        return without_template(sent)
    head, _, tail = str(flags.get("data.input_template") or "{}").partition("{}")
    return {key: text.removeprefix(head).removesuffix(tail) for key, text in sent.items()}
