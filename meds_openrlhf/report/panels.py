"""The panels of curves: the catalog's charts with what the runs have, evaluations, and all other metrics."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from meds_openrlhf.runs.catalog import CHARTS
from meds_openrlhf.step_log import UNANSWERED, pass_at_k_name, source_and_k

_SKIPPED = r"rollout/num_samples|eval_num_samples|generated_samples"


@dataclass(frozen=True)
class Panel:
    """A chart: ``series`` are metrics with their names in the legend; ``unit``, ``form``, ``hint`` as in the catalog.

    ``source``: "steps" or "evaluations". ``off``: the metrics that are hidden until the reader switches them on.
    ``folded``: the group is closed until the reader opens it.
    """

    group: str
    title: str
    series: list[tuple[str, str]]
    unit: str = ""
    form: str = "lines"
    source: str = "steps"
    hint: str = ""
    off: list[str] = field(default_factory=list)
    folded: bool = False


def panels_of(steps: set[str], evaluations: set[str]) -> list[Panel]:
    """The panels with data, given the names of all runs' metrics; those of the catalog come first."""
    known = []
    for chart in CHARTS:
        metrics = [metric for metric in chart.metrics if metric.name in steps]
        off = [metric.name for metric in metrics if metric.hidden]
        series = [(metric.name, metric.title) for metric in metrics]
        if series:
            off = off if len(off) < len(series) else []  # something is on
            known.append(Panel(chart.group, chart.title, series, chart.unit, chart.form, hint=chart.hint, off=off))
    of_evaluations = _of_evaluations(evaluations)
    drawn = {name for panel in known + of_evaluations for name, _ in panel.series}
    others = [
        Panel("All other metrics", name, [(name, name)], source=source, folded=True)
        for source, names in (("steps", steps), ("evaluations", evaluations))
        for name in sorted(names - drawn)
        if not re.fullmatch(_SKIPPED, name)
    ]
    rewards = [panel for panel in known if panel.group == "Reward"]
    return rewards + of_evaluations + known[len(rewards) :] + others


def _of_evaluations(names: set[str]) -> list[Panel]:
    """A panel with all data sets' shares without an answer, and one with pass@k for each evaluated data set."""
    passes: dict[str, list[int]] = {}
    for name in names:
        if found := source_and_k(name):
            passes.setdefault(found[0], []).append(found[1])
    unanswered = [(name, match[1]) for name in sorted(names) if (match := UNANSWERED.fullmatch(name))]
    series = {"Responses without an answer in evaluations": unanswered} if unanswered else {}
    for source, counts in sorted(passes.items()):
        series[f"pass@k on {source}"] = [(pass_at_k_name(source, k), f"pass@{k}") for k in sorted(counts)]
    return [Panel("Reward", title, of_title, "share", source="evaluations") for title, of_title in series.items()]
