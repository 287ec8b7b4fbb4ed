"""The report of an evaluation: tables for people and for programs, the curves, and a page with all of it.

It covers all labels in a folder with comparable samples, including those of earlier evaluations. Markdown, in the
paper's layout, shows percentages with two decimals; CSV and JSON hold shares from 0 to 1 as they were computed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.evaluation.request import Problem, Settings, read_settings
from meds_openrlhf.evaluation.results import AVERAGE, METRICS, BenchmarkResult, Comparison, evaluate
from meds_openrlhf.evaluation.samples import iterate_samples
from meds_openrlhf.files import MOST_TEXT, read_file, write_atomically
from meds_openrlhf.paths import inside
from meds_openrlhf.stats.estimates import LEVEL, RESAMPLES
from meds_openrlhf.stats.presentation import legend_below, look, markdown, panels, write_figure
from meds_openrlhf.terminal import counted

TABLE, CSV, JSON, PICTURE, PAGE = "table.md", "table.csv", "results.json", "pass_at_k.png", "report.md"
# How an estimate is shown, in percent.
_PERCENT, _RANGE, _GAIN = "{value:.2f}", "{low:.2f} – {high:.2f}", "{value:+.2f} ({low:+.2f} to {high:+.2f})"

Table = Mapping[tuple[str, str], pd.DataFrame]  # by model and benchmark

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
            settings = read_settings(inside(out, label, "--out"))
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
            path = inside(out, f"{label}/{name}.jsonl", "--out")
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
    titles = _sizes(comparison)
    if len(titles) > 1 and any(benchmark == AVERAGE for _, benchmark in comparison.scores):
        titles[AVERAGE] = f"average ({counted(len(titles), 'benchmark')})"
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
    figure.suptitle(f"n = {_samples_a_problem(comparison)}, bands: {100 * LEVEL:g} % intervals", fontsize=9)
    legend_below(figure, looks)
    return figure


def _sizes(comparison: Comparison) -> dict[str, str]:
    """The benchmarks, each with its name and size in words."""
    sizes = {result.benchmark: result.problems for result in comparison.results.values()}
    return {name: f"{name} ({counted(sizes[name], 'problem')})" for name in comparison.benchmarks}


def _samples_a_problem(comparison: Comparison) -> str:
    return " and ".join(map(str, sorted({result.n for result in comparison.results.values()})))


def _set_ticks(axes: Axes, ks: list[int]) -> None:
    axes.set_xscale("log", base=2)
    legible = [k for k, following in pairwise(ks) if following > 1.3 * k] + ks[-1:]  # 128 and 130 would overlap
    axes.set_xticks(legible, labels=[str(k) for k in legible])
    axes.minorticks_off()
    axes.set_xlim(ks[0] / 1.15, ks[-1] * 1.15)


def sections(comparison: Comparison) -> dict[str, str]:
    """All tables by title: the paper's with its intervals, differences to the first model, every k, and samples."""
    models = comparison.models
    title, table = papers_table(comparison)
    texts = {title: markdown(table)}
    texts[f"Intervals of {LEVEL:.0%}"] = markdown(_overview(comparison, comparison.scores, _RANGE, models))
    if len(models) > 1:
        title = f"Difference to {models[0]} on the same problems (points, interval of {LEVEL:.0%})"
        texts[title] = markdown(_overview(comparison, comparison.gains, _GAIN, models[1:]))
    for metric, name in METRICS.items():
        texts[f"{name} (%), every k"] = markdown(_every_k(comparison, metric), left=2)
    return {**texts, "Samples": markdown(_samples(comparison), left=2)}


def papers_table(comparison: Comparison) -> tuple[str, pd.DataFrame]:
    """The title and the table of pass@k in the paper's layout, the best marked."""
    title = f"Pass@k (%), k = {' and '.join(map(str, _ends(comparison)))}"
    return title, _with_best_marked(_overview(comparison, comparison.scores, _PERCENT, comparison.models))


def models_and_sampling(comparison: Comparison, settings: Mapping[str, Settings]) -> str:
    """The origin of the samples: n, the benchmarks' sizes, and a row per label with its sampling settings."""
    benchmarks = ", ".join(_sizes(comparison).values())
    drawn = f"n = {_samples_a_problem(comparison)} samples of every problem. Benchmarks: {benchmarks}."
    rows = [
        [label, chosen.model, f"{chosen.temperature:g}", f"{chosen.top_p:g}", chosen.seed, chosen.max_tokens]
        for label, chosen in settings.items()
    ]
    header = ["label", "model", "temperature", "top-p", "seed", "max tokens"]
    return f"{drawn}\n\n{markdown(pd.DataFrame(rows, columns=header), left=2)}\n"


def estimates(comparison: Comparison) -> pd.DataFrame:
    """A line per estimate. Averages have the benchmark "Avg.", all problems, and the smallest n."""
    rows = []
    for (model, benchmark), curves in comparison.scores.items():
        names = comparison.benchmarks if benchmark == AVERAGE else [benchmark]
        results = [comparison.results[model, name] for name in names]
        problems, n = sum(result.problems for result in results), min(result.n for result in results)
        rows += [[model, benchmark, *key, *row, problems, n] for key, row in zip(curves.index, curves.to_numpy())]
    return pd.DataFrame(rows, columns=["model", "benchmark", "metric", "k", "value", "low", "high", "problems", "n"])


def json_text(comparison: Comparison) -> str:
    """Results, averages, and differences to the first model, with their intervals."""
    facts = ("model", "benchmark", "problems", "n", "truncated_share", "unanswered_share", "mean_tokens")
    scores, gains, baseline = comparison.scores.items(), comparison.gains.items(), comparison.models[0]
    content = {
        "level": LEVEL,
        "results": [
            _entry(result.curves, **{name: getattr(result, name) for name in facts})
            for result in comparison.results.values()
        ],
        "averages": [_entry(curves, model=model) for (model, name), curves in scores if name == AVERAGE],
        "differences": [
            _entry(curves, model=model, baseline=baseline, benchmark=name)
            for (model, name), curves in gains
            if name != AVERAGE
        ],
        "average_differences": [
            _entry(curves, model=model, baseline=baseline) for (model, name), curves in gains if name == AVERAGE
        ],
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _entry(curves: pd.DataFrame, **facts: object) -> dict[str, object]:
    return {**facts, **{metric: curves.loc[metric].to_dict("index") for metric in METRICS}}


def _overview(comparison: Comparison, table: Table, form: str, models: Sequence[str]) -> pd.DataFrame:
    """A row per model; pass@k of the first and last k for each benchmark and the average, empty if it is missing."""
    places = [(benchmark, k) for benchmark in _with_average(comparison) for k in _ends(comparison)]
    rows = []
    for model in models:
        found = [(table.get((model, benchmark)), k) for benchmark, k in places]
        rows.append([model, *("" if curves is None else _shown(curves, "pass", k, form) for curves, k in found)])
    return pd.DataFrame(rows, columns=["model", *(f"{benchmark} pass@{k}" for benchmark, k in places)])


def _every_k(comparison: Comparison, metric: str) -> pd.DataFrame:
    """A row per benchmark and model, a column per k. Cells beyond a result's n stay empty."""
    ks = sorted({k for curves in comparison.scores.values() for _, k in curves.index})
    rows = [
        [benchmark, model, *(_shown(curves, metric, k, _PERCENT) if (metric, k) in curves.index else "" for k in ks)]
        for benchmark in _with_average(comparison)
        for model in comparison.models
        if (curves := comparison.scores.get((model, benchmark))) is not None
    ]
    return pd.DataFrame(rows, columns=["benchmark", "model", *(f"{metric}@{k}" for k in ks)])


def _ends(comparison: Comparison) -> list[int]:
    return sorted({comparison.ks[0], comparison.ks[-1]})


def _with_average(comparison: Comparison) -> list[str]:
    """The benchmarks, and the average if there are several."""
    return [*comparison.benchmarks, *([AVERAGE] if len(comparison.benchmarks) > 1 else [])]


def _samples(comparison: Comparison) -> pd.DataFrame:
    """Sample statistics: a row per benchmark and model."""
    order = comparison.benchmarks.index
    rows = [
        [
            *(result.benchmark, result.model, result.problems, result.n),
            *(f"{share * 100:.2f} %" for share in (result.truncated_share, result.unanswered_share)),
            f"{result.mean_tokens:.1f}",
        ]
        for result in sorted(comparison.results.values(), key=lambda result: order(result.benchmark))
    ]
    header = ["benchmark", "model", "problems", "samples per problem"]
    return pd.DataFrame(rows, columns=[*header, "cut at the length limit", "unanswered", "mean tokens"])


def _with_best_marked(table: pd.DataFrame) -> pd.DataFrame:
    """Mark each column's highest number in bold, and the second where a third is lower; ties as displayed."""
    marked = table.copy()
    for name in table.columns[1:]:
        figures = sorted({float(text) for text in table[name] if text}, reverse=True)[:-1]  # never the lowest
        marks = dict(zip(figures, ("**", "*")))
        signs = [marks.get(float(text), "") if text else "" for text in table[name]]
        marked[name] = [f"{sign}{text}{sign}" for sign, text in zip(signs, table[name])]
    return marked


def _shown(curves: pd.DataFrame, metric: str, k: int, form: str) -> str:
    return form.format(**(100 * curves.loc[metric, k]))
