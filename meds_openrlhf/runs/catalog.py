"""The catalog of metrics, catalog.yaml, from which all that shows or explains metrics is made."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric of a training step; catalog.yaml explains the fields of this and of `Chart`."""

    name: str
    title: str
    meaning: str = ""
    summary: str = ""
    hidden: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Metrics that are drawn together."""

    group: str
    title: str
    metrics: list[Metric]
    unit: str = ""
    form: str = "lines"
    hint: str = ""


_CONTENT = yaml.safe_load((files("meds_openrlhf.runs") / "catalog.yaml").read_text(encoding="utf-8"))
CHARTS = [
    Chart(**{**chart, "metrics": [Metric(name=name, **metric) for name, metric in chart["metrics"].items()]})
    for chart in _CONTENT["steps"]
]
GAUGES: list[dict[str, Any]] = _CONTENT["gauges"]
SUMMARY = [
    (metric.summary, metric.name, "share" if chart.unit == "share" else "")
    for chart in CHARTS
    for metric in chart.metrics
    if metric.summary
]
