"""Writes what docs/ takes from the code, `make settings`: settings from the schema, metrics from their catalogue."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.runs.catalogue import CHARTS

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("configuration.md", "metrics.md")
BEGIN, END = "<!-- made by `make settings` -->\n", "<!-- end -->\n"


def table() -> str:
    """Return the table of all settings in Markdown."""
    rows = [f"| `{name}` | {default} | {meaning} |\n" for name, default, meaning in _settings(MedsSettings, "meds")]
    return "| key | default | meaning |\n|---|---|---|\n" + "".join(rows)


def table_of_metrics() -> str:
    """Return the table of metrics in Markdown; a metric without a meaning shares that of the next in its chart."""
    lines = ["| name | chart | meaning |\n|---|---|---|\n"]
    for chart in CHARTS:
        names: list[str] = []
        for metric in chart.metrics:
            names.append(f"`{metric.name}`")
            if metric.meaning:
                lines.append(f"| {', '.join(names)} | {chart.title} | {metric.meaning} |\n")
                names = []
    return "".join(lines)


def page(name: str) -> str:
    """Return one of `PAGES` with its table as it should be."""
    before, rest = (DOCS / name).read_text().split(BEGIN)
    made = table() if name == "configuration.md" else table_of_metrics()
    return before + BEGIN + made + END + rest.split(END)[1]


def _settings(section: type, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, default and meaning of each setting of a section, those of its own before those of its sections."""
    hints, docstrings = get_type_hints(section), _docstrings(section)
    items = sorted(fields(section), key=lambda item: is_dataclass(hints[item.name]))
    for item in items:
        full = f"{name}.{item.name}"
        if is_dataclass(hints[item.name]):
            yield from _settings(hints[item.name], full)
        else:
            yield full, _shown(item.default), _as_markdown(docstrings[item.name])


def _docstrings(section: type) -> dict[str, str]:
    """Return the string below each field of a dataclass."""
    (definition,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, text in zip(definition.body, definition.body[1:]):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = ast.literal_eval(text.value)
    return found


def _shown(default: Any) -> str:
    if default is MISSING or default is None:
        return ""
    return f"`{default}`" if isinstance(default, str) else f"`{json.dumps(default)}`"


def _as_markdown(text: str) -> str:
    """Return a docstring in one line, with its quoted words and its code as code."""
    line = " ".join(text.split()).replace("``", "`").replace("|", "\\|")
    return re.sub(r'"([\w./-]+)"', r"`\1`", line)


if __name__ == "__main__":
    for name in PAGES:
        (DOCS / name).write_text(page(name))
