"""Write the prompts of a theme as a data set, to train on or to evaluate."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.loader import RunConfig
from meds_openrlhf.data.prompt_texts import without_template
from meds_openrlhf.files import write_atomically
from meds_openrlhf.judge.settings import JudgeSettings
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.report.atlas import read_atlas
from meds_openrlhf.report.themes import grouping_of, themes_of
from meds_openrlhf.runs.log import prompts_with_truth
from meds_openrlhf.runs.settings import config_of


def export_theme(run: Path, theme: str, output: Path, judge: JudgeSettings | None = None) -> int:
    """Write a line with ``prompt`` and ``answer`` for each prompt of a theme of the run, and return their number.

    ``theme`` is a name on the report's first page, or its place in the order of size, from 1; ``judge`` as for the
    report. Raises ConfigError for an unknown theme, a run without themes, or a log without right answers.
    """
    paths = RunPaths(run)
    atlas = read_atlas(paths)
    themes = None if atlas is None else themes_of([atlas], grouping_of(judge))
    if atlas is None or themes is None:
        raise ConfigError(
            "RUN", str(run), "has no themes: its log has no text of an error that recurs. Name another run."
        )
    names = themes["names"]
    number = names.index(theme) if theme in names else int(theme) - 1 if theme.isdigit() else -1
    if not 0 <= number < len(names):
        known = ", ".join(f"{place} ({name})" for place, name in enumerate(names, start=1))
        raise ConfigError("--export", theme, f"is not a theme of this run. Name one of: {known}.")
    clusters = atlas.listed[np.array(themes["runs"][0]["of"]) == number]
    keys = {atlas.rows.prompts[prompt] for prompt in atlas.clusters["prompt"].to_numpy()[clusters].tolist()}
    found = {key: texts for key, texts in prompts_with_truth(paths).items() if key in keys}
    if any(truth is None for _, truth in found.values()):
        raise ConfigError("RUN", str(run), "has a log without right answers (data.label_key). Name another run.")
    questions = _questions({key: text for key, (text, _) in found.items()}, config_of(paths))
    lines = (json.dumps({"prompt": questions[key], "answer": found[key][1]}, ensure_ascii=False) for key in found)
    write_atomically(output, "".join(f"{line}\n" for line in lines))
    return len(found)


def _questions(sent: dict[str, str], config: RunConfig | None) -> dict[str, str]:
    """The prompts as they are in a data set, without the template of the run."""
    flags = config.openrlhf if config else {}
    if flags.get("data.apply_chat_template"):
        return without_template(sent)
    head, _, tail = str(flags.get("data.input_template") or "{}").partition("{}")
    return {key: text.removeprefix(head).removesuffix(tail) for key, text in sent.items()}
