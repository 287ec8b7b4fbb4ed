"""What `make settings` writes: docs/'s tables of settings, metrics and files, and the panels of Grafana's dashboard.

Settings are those of the schema; metrics and the gauges of the memory are those of the catalog; files are the layout's.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from textwrap import indent
from typing import Any, get_type_hints

from meds_openrlhf import paths
from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.runs.catalog import CHARTS, GAUGES

REPOSITORY = Path(__file__).parents[1]
GRAFANA = REPOSITORY / "dashboards/grafana.json"
BEGIN, END = "<!-- made by `make settings` -->\n", "<!-- end -->\n"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
LINES = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "auto"}
LINE_OPTIONS = {
    "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]},
    "tooltip": {"mode": "multi", "sort": "desc"},
}
STAT_OPTIONS = {
    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    "colorMode": "value", "graphMode": "none", "justifyMode": "auto", "orientation": "auto", "textMode": "auto",
}  # fmt: skip


def files() -> dict[Path, str]:
    """The contents of all files as they should be."""
    pages = {
        "docs/configuration.md": _table_of_settings(),
        "docs/metrics.md": _table_of_metrics(),
        "docs/storage.md": _run_folder(),
    }
    found = {REPOSITORY / name: _with_table(REPOSITORY / name, table) for name, table in pages.items()}
    return {**found, GRAFANA: _dashboard()}


def _with_table(path: Path, table: str) -> str:
    before, rest = path.read_text().split(BEGIN)
    return before + BEGIN + table + END + rest.split(END)[1]


def _run_folder() -> str:
    """The files of a run's folder, as the module that names them lists them."""
    _, _, layout = (paths.__doc__ or "").partition("\n\n")
    return "\n" + indent(layout.rstrip("\n"), "    ") + "\n\n"


def _table_of_settings() -> str:
    rows = [f"| `{name}` | {default} | {meaning} |\n" for name, default, meaning in _settings(MedsSettings, "meds")]
    return "| key | default | meaning |\n|---|---|---|\n" + "".join(rows)


def _table_of_metrics() -> str:
    """The table of metrics; a metric without a meaning shares that of the next in its chart."""
    lines = ["| name | chart | meaning |\n|---|---|---|\n"]
    for chart in CHARTS:
        names: list[str] = []
        for metric in chart.metrics:
            names.append(f"`{metric.name}`")
            if metric.meaning:
                lines.append(f"| {', '.join(names)} | {chart.title} | {metric.meaning} |\n")
                names = []
    return "".join(lines)


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
    if default is MISSING:
        return "required"
    if default is None:
        return ""
    return f"`{default}`" if isinstance(default, str) else f"`{json.dumps(default)}`"


def _as_markdown(text: str) -> str:
    """Return a docstring in one line, with its quoted words and its code as code."""
    line = " ".join(text.split()).replace("``", "`").replace("|", "\\|")
    return re.sub(r'"([\w./-]+)"', r"`\1`", line)


def _dashboard() -> str:
    """Grafana's dashboard of the memory: a heading for each row of the catalog, and below it its charts in rows."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in GAUGES:
        heading = {"type": "row", "title": row["row"], "collapsed": False, "panels": []}
        panels.append({**heading, "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}})
        x, y = 0, y + 1
        for chart in row["charts"]:
            width, height = (6, 4) if chart.get("stat") else (12, 8)
            panels.append({**_panel(**chart), "gridPos": {"h": height, "w": width, "x": x, "y": y}})
            x = (x + width) % 24
            y += 0 if x else height
    numbered = [{"id": number, **panel} for number, panel in enumerate(panels, start=1)]
    return json.dumps({**json.loads(GRAFANA.read_text()), "panels": numbered}, indent=2) + "\n"


def _panel(title: str, gauges: list[str], hint: str, unit: str = "short", stat: bool = False) -> dict[str, Any]:
    queries = []
    for letter, gauge in zip("ABC", gauges):
        # Ray adds labels of the process: after a restart a shard has two series for a while.
        query, legend = f'max by (run, shard) (ray_meds_memory_{gauge}{{run=~"$run"}})', "{{run}} shard {{shard}}"
        if stat:
            query, legend = f"sum by (run) ({query})", "{{run}}"
        elif len(gauges) > 1:
            query, legend = f"max by (run) ({query})", f"{{{{run}}}} {gauge.removesuffix('_seconds')}"
        kind = {"range": not stat, "instant": stat}
        queries.append({"refId": letter, "datasource": SOURCE, "expr": query, "legendFormat": legend, **kind})
    defaults = {"unit": unit} if stat else {"unit": unit, "min": 0, "custom": LINES}
    return {
        "type": "stat" if stat else "timeseries",
        "title": title,
        "description": hint,
        "datasource": SOURCE,
        "targets": queries,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": STAT_OPTIONS if stat else LINE_OPTIONS,
    }


if __name__ == "__main__":
    for path, content in files().items():
        path.write_text(content)
