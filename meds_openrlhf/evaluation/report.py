"""The report of an evaluation: tables for people and for programs, the curves, and a page with all of it.

It covers all labels in a folder with comparable samples, including those of earlier evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.evaluation.problems import Problem
from meds_openrlhf.evaluation.results import AVERAGE, BenchmarkResult, Comparison, evaluate
from meds_openrlhf.evaluation.samples import iterate_samples
from meds_openrlhf.evaluation.settings import Settings, read_settings
from meds_openrlhf.evaluation.tables import estimates, json_text, models_and_sampling, sections
from meds_openrlhf.files import MOST_TEXT, read_file, write_atomically
from meds_openrlhf.paths import inside
from meds_openrlhf.stats.estimates import LEVEL, RESAMPLES
from meds_openrlhf.stats.presentation import legend_below, look, panels, write_figure
from meds_openrlhf.text_table import counted

TABLE, CSV, JSON, PICTURE, PAGE = "table.md", "table.csv", "results.json", "pass_at_k.png", "report.md"

HOW = f"""\
pass@k is the probability that at least one of k samples is right, by the unbiased estimator 1 - C(n - c, k) / C(n, k)
from c right samples among a problem's n (Chen et al. 2021), averaged over problems. maj@k is the probability that the
most frequent final answer of k samples is right; ties are equally likely to win, and samples without an answer do not
vote. "Avg." is the unweighted mean over benchmarks. Intervals of {LEVEL:.0%} say how far a figure would move with other
problems of the same kind: quantiles of {RESAMPLES:,} Bayesian bootstrap weightings of the problems within each
benchmark, with one problem added in total that is half right and half wrong. Differences are taken problem by problem;
if their interval excludes 0, the choice of problems does not explain that the models differ.
"""


def write_report_of_labels(
    out: Path,
    wanted: Settings,
    benchmarks: Mapping[str, Sequence[Problem]],
    n: int,
    first: Sequence[str],
    tell: Callable[[str], None],
) -> None:
    """Write the report over all labels in ``out``, those in ``first`` before the others.

    A label is left out, and ``tell`` gets a line, if its settings cannot be read or are not ``wanted``, or if samples
    are missing. A label that was never sampled on a benchmark has empty cells there.
    """
    present = sorted(folder.name for folder in out.iterdir() if folder.is_dir())
    labels: dict[str, Settings] = {}
    for label in dict.fromkeys([*first, *present]):
        try:
            settings = read_settings(inside(out, label))
        except ConfigError as error:
            tell(f"{label} is left out of the report: {error.value} {error.hint}")
            continue
        if settings is not None:
            labels[label] = settings
    write_report(out, results_of_labels(out, labels, wanted, benchmarks, n, tell), labels)


def results_of_labels(
    out: Path,
    labels: Mapping[str, Settings],
    wanted: Settings,
    benchmarks: Mapping[str, Sequence[Problem]],
    n: int,
    tell: Callable[[str], None],
) -> list[BenchmarkResult]:
    """The results of ``labels`` in ``out`` that `write_report_of_labels` does not leave out."""
    results: list[BenchmarkResult] = []
    for label, settings in labels.items():
        difference = wanted.difference(settings)
        if difference is not None:
            tell(f"{label} is left out of the report: {difference}")
            continue
        for name, problems in benchmarks.items():
            path = inside(out, f"{label}/{name}.jsonl")
            samples = list(iterate_samples(path, texts=False)) if path.is_file() else []
            present = {(sample.problem, sample.index) for sample in samples if sample.index < n}
            lacking = len({(problem.id, index) for problem in problems for index in range(n)} - present)
            if not lacking:
                results.append(evaluate(label, name, problems, samples, n))
            elif present:
                tell(f"{label} is left out of the report on {name}: {lacking} samples are missing")
    return results


def write_report(folder: Path, results: Sequence[BenchmarkResult], settings: Mapping[str, Settings]) -> Comparison:
    """Write the five files into ``folder``, each atomically; ``settings`` are the sampling settings by label."""
    comparison = Comparison(results)
    figure, numbers, details = draw_curves(comparison), estimates(comparison), json_text(comparison)
    tables = "\n".join(f"### {title}\n\n{table}\n" for title, table in sections(comparison).items())
    write_atomically(folder / TABLE, tables)
    write_atomically(folder / CSV, numbers.to_csv(index=False, lineterminator="\n"))
    write_atomically(folder / JSON, details)
    write_figure(figure, folder / PICTURE)
    page = [f"# {', '.join(comparison.models)} on {', '.join(comparison.benchmarks)}", ""]
    page += [f"![pass@k over k]({PICTURE})", "", tables]
    shown = {label: settings[label] for label in comparison.models}
    page += ["### Models and sampling", "", models_and_sampling(comparison, shown)]
    # The page comes last: the files that it refers to must exist.
    write_atomically(folder / PAGE, "\n".join([*page, "### How this was computed", "", HOW]))
    return comparison


def first_table(folder: Path) -> str:
    """The overview of the report in ``folder``, with its title; all the rest is in ``report.md``."""
    return read_file(folder / TABLE, MOST_TEXT).decode().split("\n### ")[0]


def draw_curves(comparison: Comparison) -> Figure:
    """Draw pass@k over k: a panel per benchmark and one for the average, a line with its interval per model.

    Models without results on a benchmark are left out of its panel.
    """
    results, benchmarks = comparison.results.values(), comparison.benchmarks
    sizes = {result.benchmark: result.problems for result in results}
    titles = {name: f"{name} ({counted(sizes[name], 'problem')})" for name in benchmarks}
    if len(benchmarks) > 1 and any(benchmark == AVERAGE for _, benchmark in comparison.scores):
        titles[AVERAGE] = f"average ({counted(len(benchmarks), 'benchmark')})"
    figure, grid = panels(list(titles.values()), xlabel="k", ylabel="pass@k (%)")
    looks = {model: look(position) for position, model in enumerate(comparison.models)}
    for axes, benchmark in zip(grid, titles):
        found = {model: comparison.scores.get((model, benchmark)) for model in comparison.models}
        curves = {model: curve.loc["pass"] for model, curve in found.items() if curve is not None}
        for model, curve in curves.items():
            percent, color = 100 * curve, looks[model]["color"]
            # Thin edges separate bands whose fills overlap.
            band: dict[str, Any] = {
                "facecolor": to_rgba(color, 0.07),
                "edgecolor": to_rgba(color, 0.55),
                "linewidth": 0.6,
            }
            axes.fill_between(curve.index, percent.low, percent.high, **band)
            axes.plot(curve.index, percent.value, linewidth=1.6, **looks[model])
        _set_ticks(axes, sorted({k for curve in curves.values() for k in curve.index}))
    ns = sorted({result.n for result in results})
    figure.suptitle(f"n = {' and '.join(map(str, ns))}, bands: {100 * LEVEL:g} % intervals", fontsize=9)
    legend_below(figure, looks)
    return figure


def _set_ticks(axes: Axes, ks: list[int]) -> None:
    axes.set_xscale("log", base=2)
    legible = [k for k, following in pairwise(ks) if following > 1.3 * k] + ks[-1:]  # 128 and 130 would overlap
    axes.set_xticks(legible, labels=[str(k) for k in legible])
    axes.minorticks_off()
    axes.set_xlim(ks[0] / 1.15, ks[-1] * 1.15)
