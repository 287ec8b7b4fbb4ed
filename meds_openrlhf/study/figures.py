"""The figures of a study: curves of every seed, paired differences, pass@k, eigen ratios, agreement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meds_openrlhf.evaluation.curves import COLORS
from meds_openrlhf.evaluation.results import ks_up_to
from meds_openrlhf.study.results import EIGEN_RATIO, RunResult
from meds_openrlhf.study.statistics import interquartile_mean
from meds_openrlhf.study.study_file import PASS_AT, Study
from meds_openrlhf.study.verdicts import Results, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Course = Callable[[RunResult], Mapping[float, float]]  # a run's values by step, or by k
_STYLES = ("-", "--", ":", "-.")
_WIDTH, _HEIGHT = 4.4, 3.2  # of a panel, inches


def figures_of(study: Study, results: Results, verdicts: Sequence[Verdict]) -> dict[str, tuple[str, Figure]]:
    """Every figure that has data, by its file's name, with its caption."""
    lines = "Thin lines: seeds; thick lines: their interquartile mean."
    found: dict[str, tuple[str, Figure | None]] = {}
    for metric in study.rule.primary:
        name = f"curves-{metric.replace('@', '-').replace('/', '-').replace(':', '-')}"
        drawn = _courses(study, results, lambda run, metric=metric: course_of(run, metric), "training step", metric)  # type: ignore[misc]
        found[name] = (f"{metric} over training. {lines}", drawn)
    found["differences"] = (
        "Paired differences of the claims, in the units of their metrics: every task and seed, and the interval.",
        _differences(verdicts),
    )
    at_k = _courses(study, results, lambda run: _pass_at_every_k(run, study.rule.last), "k", "pass@k", log=True)
    found["pass-at-k"] = (f"pass@k on held-out problems, mean of the last {study.rule.last} evaluations. {lines}", at_k)
    ratios = _courses(study, results, lambda run: course_of(run, EIGEN_RATIO), "training step", "top-1 eigen ratio")
    found["eigen-ratio"] = (f"Top-1 eigen ratio of remembered rollouts, sliding window. {lines}", ratios)
    found["agreement"] = (
        "Agreement of clusters with the known mistakes: every seed, and the interquartile mean.",
        _agreement(study, results),
    )
    return {name: (caption, figure) for name, (caption, figure) in found.items() if figure is not None}


def course_of(result: RunResult, metric: str) -> dict[float, float]:
    """A metric over steps: of the evaluations if it is pass@k, else of training."""
    if at := PASS_AT.fullmatch(metric):
        return {step: result.pass_at(step, int(at[1])) for step in result.evaluated}
    return {step: value for step, value in result.curves.get(metric, [])}


def _pass_at_every_k(result: RunResult, last: int) -> dict[float, float]:
    steps = result.evaluated[-last:]
    return {k: float(np.mean([result.pass_at(step, k) for step in steps])) for k in ks_up_to(result.n)}


def _panels(count: int) -> tuple[Figure, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH * count, _HEIGHT), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _courses(
    study: Study, results: Results, course: Course, xlabel: str, ylabel: str, log: bool = False
) -> Figure | None:
    """A panel per task that has such a run, a colour per method; None if there is none."""
    courses = {key: found for key, result in results.items() if (found := course(result))}
    if not courses:
        return None
    tasks = [task for task in study.tasks if any(key[0] == task for key in courses)]
    figure, panels = _panels(len(tasks))
    for axes, task in zip(panels, tasks):
        for number, method in enumerate(study.methods):
            seeds = [courses[key] for key in courses if key[:2] == (task, method)]
            _draw_method(axes, seeds, number, method)
        axes.set(title=task, xlabel=xlabel, ylabel=ylabel)
        if log:
            axes.set_xscale("log", base=2)
    _add_legend(figure, panels)
    return figure


def _draw_method(axes: Any, seeds: Sequence[Mapping[float, float]], number: int, method: str) -> None:
    look = {"color": COLORS[number % len(COLORS)], "linestyle": _STYLES[number // len(COLORS) % len(_STYLES)]}
    for curve in seeds:
        axes.plot(list(curve), list(curve.values()), linewidth=0.6, alpha=0.45, **look)
    shared = sorted(set.intersection(*(set(curve) for curve in seeds))) if seeds else []
    if shared:
        middle = [float(interquartile_mean(np.array([[curve[x] for curve in seeds]]))) for x in shared]
        axes.plot(shared, middle, linewidth=2.2, label=method, **look)


def _add_legend(figure: Figure, panels: Sequence[Any]) -> None:
    found = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels())}
    if found:
        figure.legend(found.values(), found.keys(), loc="outside right upper", fontsize="small", frameon=False)


def _differences(verdicts: Sequence[Verdict]) -> Figure | None:
    """A panel per claim, since claims have different units: dots for tasks and seeds, a bar for the interval."""
    from matplotlib.figure import Figure

    drawn = [verdict for verdict in verdicts if verdict.comparison is not None]
    if not drawn:
        return None
    figure = Figure(figsize=(7.0, 1.25 * len(drawn)), layout="constrained")
    for axes, verdict in zip(figure.subplots(len(drawn), 1, squeeze=False)[:, 0], drawn):
        comparison = verdict.comparison
        assert comparison is not None
        for number, task in enumerate(comparison.pairs.tasks):
            gaps = comparison.pairs.scores[number] - comparison.pairs.others[number]
            axes.plot(gaps, [0.35] * len(gaps), "o", markersize=4, alpha=0.7, color=COLORS[number % 7], label=task)
        found = comparison.difference
        axes.plot([found.low, found.high], [0, 0], color="black", linewidth=2)
        axes.plot([found.value], [0], "D", color="black", markersize=5)
        axes.axvline(0, color="#999999", linewidth=0.8)
        axes.set(ylim=(-0.3, 0.65), yticks=[])
        axes.set_title(f"{verdict.name}: {verdict.verdict}", fontsize=9, loc="left")
    _add_legend(figure, figure.axes)
    return figure


def _agreement(study: Study, results: Results) -> Figure | None:
    """A panel per task with known mistakes: a group of dots per feature and preset, a colour per method."""
    known = {key: result.agreement for key, result in results.items() if result.agreement}
    if not known:
        return None
    tasks = [task for task in study.tasks if any(key[0] == task for key in known)]
    names = list(dict.fromkeys(name for agreement in known.values() for name in agreement))
    figure, panels = _panels(len(tasks))
    for axes, task in zip(panels, tasks):
        for number, method in enumerate(study.methods):
            look = {"color": COLORS[number % len(COLORS)], "alpha": 0.8}
            shift = 0.5 * (number / max(len(study.methods) - 1, 1) - 0.5)
            seeds = [agreement for key, agreement in known.items() if key[:2] == (task, method)]
            for place, name in enumerate(names):
                values = [points[name] for points in seeds if name in points]
                label = method if place == 0 else None
                axes.plot([place + shift] * len(values), values, "o", markersize=3, label=label, **look)
                if values:
                    axes.plot([place + shift], interquartile_mean(np.array([values])), "_", markersize=9, **look)
        axes.set(title=task, ylabel="share of pairs that agree")
        axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize="x-small")
    _add_legend(figure, panels)
    return figure
