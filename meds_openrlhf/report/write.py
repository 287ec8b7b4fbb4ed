"""Write the report of run folders to one HTML file."""

from __future__ import annotations

import base64
import gzip
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf import __version__
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.judge.settings import JudgeSettings
from meds_openrlhf.options import Trainer
from meds_openrlhf.outputs import STDOUT, require_output, require_outputs, write_output
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.report.atlas import Atlas, Limits, read_atlas, tables_of
from meds_openrlhf.report.details import details_of
from meds_openrlhf.report.export import export_prompts, keys_of, require_suffix
from meds_openrlhf.report.findings import as_markdown, findings_of
from meds_openrlhf.report.page import render
from meds_openrlhf.report.panels import panels_of
from meds_openrlhf.report.suspects import Gradings, Suspect, Unsolved, groups_by_step
from meds_openrlhf.report.themes import RunsThemes, themes_of
from meds_openrlhf.rollouts.run import RolloutLog, read_log
from meds_openrlhf.runs.metrics import duration_of, history_of, summary_of
from meds_openrlhf.runs.settings import (
    compare_settings,
    config_of,
    flat_settings,
    method_in_words,
    names_of,
    planned_steps,
)
from meds_openrlhf.step_log import StepLog
from meds_openrlhf.terminal import counted, cut
from meds_openrlhf.themes.grouping import ClusterTexts, Themes, by_departure
from meds_openrlhf.whatif.page import WhatIf
from meds_openrlhf.whatif.visits import read_visits

_LEVEL = 4  # of compression: higher levels take 50 % longer and save only 2 %

_SHOWN = 200  # suspects, and prompts that are never solved


def write_report(
    runs: list[Path],
    output: Path,
    limits: Limits | None = None,
    judge: JudgeSettings | None = None,
    export: tuple[str, Path] | None = None,
    trainer: Trainer = "meds",
    data: Path | None = None,
    markdown: Path | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> Path:
    """Write the report of one or several run folders atomically to ``output``, and return ``output``.

    With a ``judge``, this language model makes and names the themes. ``export`` names a theme, or what else `keys_of`
    knows, and the file for its prompts, as ``trainer`` reads them; see `export_prompts`. ``data`` is a file for the
    findings as JSON, and ``markdown`` one for them as Markdown (see `findings_of`); `STDOUT` is the standard output.
    ``say`` is told what is being done.

    The runs are only read and may still be training. Raises ConfigError if a folder has nothing to report, its settings
    cannot be read, or ``output`` cannot be written; MemoryCorruptionError if a memory is damaged.
    """
    require_output(output, "--out")  # also if it is named as standard output is
    require_outputs({"--out": output, "--export": export and export[1], "--json": data, "--markdown": markdown})
    if export is not None:
        require_suffix(export[1], trainer)
    _require_folders(runs)
    names, limits = names_of(runs), (limits or Limits()).shared_by(len(runs))
    settings = [flat_settings(RunPaths(run)) for run in runs]
    atlases = []
    for folder in runs:
        say(f"reading {folder}")
        atlases.append(read_atlas(RunPaths(folder), limits))
    facts = [_facts(name, RunPaths(run), flat, limits) for name, run, flat in zip(names, runs, settings)]
    for run, atlas in zip(facts, atlases):
        if atlas is None and not run["history"]["steps"] and not run["evaluations"]["steps"]:
            problem = "has nothing to report yet: no finished step and no wrong answer"
            others = "of rollouts that another program dumped, `meds atlas` makes one"
            raise ConfigError("RUN", run["folder"], f"{problem}. Name the folder of a run that has trained; {others}.")
    found = _find(runs, atlases, judge, say)
    if export is not None:
        keys = keys_of(export[0], found.gradings, found.themes)
        count = export_prompts(keys, found.logs.values(), export[1], trainer)
        print(f"{export[1]}: {counted(count, 'prompt')}", file=sys.stderr)
    say(f"writing {output}")
    page = _page(facts, compare_settings(settings), atlases, found, limits)
    details = [pack(atlas and details_of(atlas)) for atlas in atlases]
    write_output(output, render(pack(page), details), "--out")
    if data is not None or markdown is not None:
        _write_findings(runs, found, data, markdown)
    return output


@dataclass(frozen=True)
class _Found:
    """What was found in runs, of which the number is the key.

    ``themes`` are of the runs in ``themed``, in this order, by the language ``model`` if there is one.
    """

    logs: dict[int, RolloutLog]
    gradings: Gradings | None
    whatif: dict[int, WhatIf]
    themed: list[int]
    themes: RunsThemes | None
    model: str | None


def _find(
    runs: Sequence[Path], atlases: Sequence[Atlas | None], judge: JudgeSettings | None, say: Callable[[str], object]
) -> _Found:
    logs = {number: log for number, log in enumerate(_logs(runs, atlases)) if len(log)}
    questions = {key: text for atlas in atlases if atlas is not None for key, text in atlas.texts.items()}
    say("looking for gradings that may be wrong")
    gradings = Gradings([*logs.values()], questions) if logs else None
    say("asking what each method would change")
    whatif = {number: WhatIf(read_visits(runs[number])) for number in logs}
    say("looking for themes")
    logged = {number: atlas for number, atlas in enumerate(atlases) if atlas is not None and len(atlas.rollouts)}
    grouped = partial(_by_model, judge) if judge else by_departure
    themes = themes_of([*logged.values()], grouped) if logged else None
    return _Found(logs, gradings, whatif, [*logged], themes, judge.model if judge else None)


def _page(
    facts: list[dict[str, Any]],
    settings: list[dict[str, Any]],
    atlases: Sequence[Atlas | None],
    found: _Found,
    limits: Limits,
) -> dict[str, Any]:
    """What the page shows: the ``facts`` of each run with its errors, and what was found in all."""
    for run, atlas in zip(facts, atlases):
        run["atlas"] = atlas and tables_of(atlas)
    for number, log in found.logs.items():
        facts[number]["groups"] = groups_by_step(log)
        facts[number]["whatif"] = found.whatif[number].for_page()
    page: dict[str, Any] = {
        "version": __version__,
        "made": _iso(datetime.now(timezone.utc).timestamp()),
        "runs": facts,
        "settings": settings,
        "panels": [asdict(panel) for panel in panels_of(_names(facts, "history"), _names(facts, "evaluations"))],
    }
    if found.gradings is not None:
        page["gradings"] = _for_page(found.gradings, limits)
    if found.themes is not None:
        shown = found.themes.for_page()
        page["themes"] = {**shown, "runs": dict(zip(found.themed, shown["runs"])), "model": found.model}
    return page


def _write_findings(runs: Sequence[Path], found: _Found, data: Path | None, markdown: Path | None) -> None:
    """Write the findings as JSON, as Markdown, or both."""
    history = [history_of(StepLog(RunPaths(run).metrics).read(), sys.maxsize) for run in runs]  # not averaged
    names = [*map(str, runs)]
    logs = {names[number]: log for number, log in found.logs.items()}
    findings = findings_of(names, logs, found.gradings, found.themes, history)
    findings["whatif"] = {names[number]: one.as_json() for number, one in found.whatif.items()}
    if data is not None:
        _publish(data, json.dumps(findings, allow_nan=False) + "\n", "--json")
    if markdown is not None:
        text = as_markdown(findings, found.themes).encode("utf-8", "backslashreplace")  # a lone surrogate has no bytes
        _publish(markdown, text.decode(), "--markdown")


def _by_model(judge: JudgeSettings, clusters: Sequence[ClusterTexts], sizes: NDArray[np.int64]) -> Themes:
    """Group clusters with a language model, and tell what that cost."""
    from meds_openrlhf.judge.client import JudgeClient  # imports openai, of the extra `judge`
    from meds_openrlhf.themes.naming import by_model

    client = JudgeClient(judge)
    themes = by_model(client, clusters, sizes)
    print(client.cost_line(), file=sys.stderr)
    return themes


def _publish(target: Path, text: str, option: str) -> None:
    if target == STDOUT:
        sys.stdout.write(text)
    else:
        write_output(target, text, option)


def _logs(runs: Sequence[Path], atlases: Sequence[Atlas | None]) -> Iterator[RolloutLog]:
    """Each run's log; a run without an atlas may have one, in which nothing is wrong or nothing has an answer."""
    for run, atlas in zip(runs, atlases):
        yield read_log(RunPaths(run)) if atlas is None else atlas.rollouts


def _for_page(gradings: Gradings, limits: Limits) -> dict[str, Any]:
    """What the page shows of gradings: the first of the suspects and of the prompts that are never solved."""
    suspects, unsolved = gradings.suspects, gradings.unsolved

    def shown(entry: Suspect | Unsolved) -> dict[str, Any]:
        most = {
            "prompt": limits.prompt_characters,
            "answer": limits.answer_characters,
            "truth": limits.answer_characters,
        }
        return {
            name: cut(value, most[name]) if value and name in most else value for name, value in asdict(entry).items()
        }

    return {
        "suspects": [shown(suspect) for suspect in suspects[:_SHOWN]],
        "unsolved": [shown(prompt) for prompt in unsolved[:_SHOWN]],
        "found": [len(suspects), len(unsolved)],
        "one_answer": sum(prompt.answers == 1 and prompt.rollouts > 1 for prompt in unsolved),
        "doubtful": sum(suspect.count for suspect in suspects if suspect.is_equal),
        "verifier": gradings.has_math_verify,
        "left_out": gradings.left_out,
    }


def pack(content: Any) -> str:
    """Pack into base64 of gzip of JSON, which contains neither quotes nor angle brackets.

    A lone surrogate, which UTF-8 cannot encode, is written as a JSON escape.
    """
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("utf-8", "backslashreplace"), _LEVEL, mtime=0)).decode()


def _facts(name: str, paths: RunPaths, settings: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """The page's data about a run, except its errors."""
    config, lines = config_of(paths), StepLog(paths.metrics).read()
    return {
        "name": name,
        "folder": str(paths.root),
        "method": method_in_words(config),
        "model": settings.get("actor.model_name_or_path"),
        "data": settings.get("data.prompt_dataset"),
        "done": int(lines[-1]["step"]) if lines else 0,
        "planned": planned_steps(paths),
        "ended": paths.model_complete.exists(),  # saved after the last step
        "started": _changed(paths.tracking) or _changed(paths.config),  # a resumed run writes its settings again
        "filtered": bool(config and config.openrlhf.get("algo.dynamic_filtering_enable")),
        "last": _changed(paths.metrics),
        "time": duration_of(lines),
        "summary": summary_of(lines),
        "history": history_of(lines, limits.steps),
        "evaluations": history_of(StepLog(paths.evaluations).read(), limits.steps),
    }


def _require_folders(runs: list[Path]) -> None:
    for run in runs:
        if not os.path.isdir(run):
            problem = "is a file" if os.path.exists(run) else "does not exist"
            raise ConfigError("RUN", str(run), f"{problem}. Name the folder of a run that has trained.")


def _names(facts: list[dict[str, Any]], kind: str) -> set[str]:
    return {name for run in facts for name in run[kind]["columns"]}


def _changed(path: Path) -> str | None:
    with suppress(OSError, OverflowError, ValueError):  # there is none, or its time is beyond the year 9999
        return _iso(path.stat().st_mtime)
    return None


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
