"""Writes the panels in grafana.json, the dashboard of the memory's gauges, from the catalogue: `make settings`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from meds_openrlhf.runs.catalogue import GAUGES

FILE = Path(__file__).with_name("grafana.json")
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


def page() -> str:
    """The file as it should be: a heading for each row of the catalogue, and below it its charts from left to right."""
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
    return json.dumps({**json.loads(FILE.read_text()), "panels": numbered}, indent=2) + "\n"


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
    FILE.write_text(page())
