"""What a report found, for programs: as JSON with a stable schema, and as Markdown for an issue or a coding agent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from meds_openrlhf.report.suspects import Gradings
from meds_openrlhf.report.themes import RunsThemes
from meds_openrlhf.rollouts.run import NONE, RolloutLog
from meds_openrlhf.terminal import counted, in_a_line

_LISTED = 20  # suspects, prompts and themes in Markdown
_CHARACTERS = 300  # of a text in Markdown


def findings_of(
    runs: Sequence[str],
    logs: dict[str, RolloutLog],
    gradings: Gradings | None,
    themes: RunsThemes | None,
    metrics: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """The findings about ``runs``, given as on the command line; ``logs`` are those of the runs that have one.

    docs/report.md describes the keys.
    """
    folders = {str(log.paths.root): run for run, log in logs.items()}
    return {
        "version": 1,
        "runs": list(runs),
        "suspects": [] if gradings is None else [asdict(suspect) for suspect in gradings.suspects],
        "graded_with": "math-verify" if gradings is not None and gradings.has_math_verify else "normalization",
        "unsolved": [] if gradings is None else [asdict(prompt) for prompt in gradings.unsolved],
        "themes": [] if themes is None else _themes(themes, folders),
        "unanswered": {run: int((~log.correct & (log.answer == NONE)).sum()) for run, log in logs.items()},
        "rollouts": {run: len(log) for run, log in logs.items()},
        "metrics": {
            run: {"steps": history["steps"], "values": history["columns"]} for run, history in zip(runs, metrics)
        },
    }


def _themes(themes: RunsThemes, runs: dict[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"name": name, "rollouts": [], "share": [], "change": None} for name in themes.names]
    for run in themes.runs:
        log, theme = run.atlas.rollouts, run.rollouts["theme"].to_numpy()
        name = runs[str(log.paths.root)]
        steps, of_step = np.unique(log.step, return_inverse=True)
        whole = np.bincount(of_step)
        for number, entry in enumerate(found):
            places = run.at(number)
            entry["rollouts"] += [
                {"run": name, "step": step, "sample": sample}
                for step, sample in zip(log.step[places].tolist(), log.sample[places].tolist())
            ]
            shares = np.bincount(of_step[theme == number], minlength=len(steps)) / whole
            entry["share"] += [
                {"run": name, "step": step, "share": share} for step, share in zip(steps.tolist(), shares.tolist())
            ]
    for entry, change in zip(found, themes.runs[-1].change):
        points, low, high = (round(100 * value, 2) for value in change)
        entry["change"] = {"points": points, "low": low, "high": high, "is_clear": low > 0 or high < 0}
    return found


def as_markdown(findings: dict[str, Any], themes_of_runs: RunsThemes | None) -> str:
    """The findings as Markdown, with an example response for each theme; texts of the run are code."""
    lines = [f"# What {', '.join(map(_code, findings['runs']))} got wrong", ""]
    suspects, unsolved, themes = (findings[name] for name in ("suspects", "unsolved", "themes"))
    lines += ["## Suspect grading", "", f"Checked with {findings['graded_with']}.", ""]
    lines += [
        f"- {_code(suspect['answer'] or '(any answer)')}, label {_code(suspect['truth'] or '(none)')}: "
        f"{counted(suspect['count'], 'rollout')} scored wrong, but {suspect['why']}. Prompt: {_code(suspect['prompt'])}"
        for suspect in suspects[:_LISTED]
    ] or ["Nothing suspect was found."]
    lines += _more(len(suspects))
    lines += ["", f"## Never solved: {counted(len(unsolved), 'prompt')}", ""]
    lines += [
        f"- {prompt['count']} of {prompt['rollouts']} rollouts answer {_code(prompt['answer'] or '(none)')}, right is "
        f"{_code(prompt['truth'] or '(unknown)')}. Prompt: {_code(prompt['prompt'])}"
        for prompt in unsolved[:_LISTED]
    ]
    lines += _more(len(unsolved))
    lines += ["", "## Kinds of errors", ""]
    for number, theme in enumerate(themes[:_LISTED]):
        example = "" if themes_of_runs is None else _example(themes_of_runs, number)
        lines += [
            f"### {_plain(theme['name'])}",
            "",
            f"{counted(len(theme['rollouts']), 'rollout')}. {_changed(theme['change'])}",
            "",
        ]
        lines += [*_fenced(example), ""] if example else []
    lines += ["## Without an answer", ""]
    lines += [
        f"- {_code(run)}: {n} of {findings['rollouts'][run]} rollouts" for run, n in findings["unanswered"].items()
    ]
    return "\n".join(lines) + "\n"


def _more(found: int) -> list[str]:
    return [f"- and {found - _LISTED} more"] if found > _LISTED else []


def _example(themes: RunsThemes, theme: int) -> str:
    """A response of the theme as text, with the numbers of characters that are left out; empty if there is none."""
    for example in (example for run in themes.runs for example in run.examples[theme]):
        return "".join(part if isinstance(part, str) else f"[… {part} characters …]" for _, part in example["p"])
    return ""


def _changed(change: dict[str, Any] | None) -> str:
    if change is None:
        return "No prompt can be compared."
    sure = "clear" if change["is_clear"] else "not clear"
    return f"Change: {change['points']:+.1f} points ({change['low']:+.1f} to {change['high']:+.1f}), {sure}."


def _plain(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", text)


def _code(text: str) -> str:
    """A text as inline code, on a line and shortened, whatever backticks it has."""
    line = in_a_line(text, _CHARACTERS) or "(empty)"
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    return f"{fence} {line} {fence}" if "`" in line else f"`{line}`"


def _fenced(text: str) -> list[str]:
    fence = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    return [fence, text, fence]
