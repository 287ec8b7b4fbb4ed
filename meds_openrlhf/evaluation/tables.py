"""Results as Markdown in the paper's layout, as CSV for a data frame, and as JSON with all details.

Markdown shows percentages with two decimals; CSV and JSON hold shares from 0 to 1 as they were computed.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict

from meds_openrlhf.evaluation.intervals import LEVEL
from meds_openrlhf.evaluation.results import BenchmarkResult, Comparison, Curves, Estimate, counted
from meds_openrlhf.evaluation.settings import Settings

AVERAGE = "Avg."
CSV_COLUMNS = ("model", "benchmark", "metric", "k", "value", "low", "high", "problems", "n")

Row = list[str]


def markdown(comparison: Comparison) -> str:
    """All tables: the paper's with its intervals, differences to the first model, every k, and sample statistics."""
    ks = sorted({comparison.ks[0], comparison.ks[-1]})
    sections = [
        (f"Pass@k (%), {_listed(ks)}", _overview(comparison, ks, _scores, _percent, mark_best=True)),
        (f"Intervals of {LEVEL:.0%}", _overview(comparison, ks, _scores, _range)),
    ]
    if len(comparison.models) > 1:
        title = f"Difference to {_cell(comparison.models[0])} on the same problems (points, interval of {LEVEL:.0%})"
        sections.append((title, _overview(comparison, ks, _gains, _gain, comparison.models[1:])))
    sections += [
        ("Pass@k (%), every k", _every_k(comparison, "pass")),
        ("Maj@k (%), every k", _every_k(comparison, "maj")),
        ("Samples", _samples(comparison)),
    ]
    return "\n".join(f"### {title}\n\n{table}" for title, table in sections)


def models_and_sampling(comparison: Comparison, settings: Mapping[str, Settings]) -> str:
    """The origin of the samples: n, the benchmarks' sizes, and a row per label with its sampling settings."""
    sizes = {result.benchmark: result.problems for result in comparison.results.values()}
    ns = sorted({result.n for result in comparison.results.values()})
    drawn = f"n = {' and '.join(map(str, ns))} samples of every problem."
    benchmarks = ", ".join(f"{_cell(name)} ({counted(sizes[name], 'problem')})" for name in comparison.benchmarks)
    rows = [
        [label, chosen.model, f"{chosen.temperature:g}", f"{chosen.top_p:g}", str(chosen.seed), str(chosen.max_tokens)]
        for label, chosen in settings.items()
    ]
    table = _table(["label", "model", "temperature", "top-p", "seed", "max tokens"], rows)
    return f"{drawn} Benchmarks: {benchmarks}.\n\n{table}"


def csv_text(comparison: Comparison) -> str:
    """Long format, a line per estimate. Averages have the benchmark "Avg.", all problems, and the smallest n."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for result in comparison.results.values():
        writer.writerows(_csv_rows(result.model, result.benchmark, result, result.problems, result.n))
    for model, curves in comparison.averages.items():
        results = [comparison.results[model, benchmark] for benchmark in comparison.benchmarks]
        problems, n = sum(result.problems for result in results), min(result.n for result in results)
        writer.writerows(_csv_rows(model, AVERAGE, curves, problems, n))
    return file.getvalue()


def json_text(comparison: Comparison) -> str:
    """Results, averages, and differences to the first model, with their intervals."""
    content = {
        "level": LEVEL,
        "results": [_facts(result) for result in comparison.results.values()],
        "averages": [{"model": model, **_estimates(curves)} for model, curves in comparison.averages.items()],
        "differences": [
            {"model": model, "baseline": comparison.models[0], "benchmark": benchmark, **_estimates(curves)}
            for (model, benchmark), curves in comparison.differences.items()
        ],
        "average_differences": [
            {"model": model, "baseline": comparison.models[0], **_estimates(curves)}
            for model, curves in comparison.average_differences.items()
        ],
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _overview(
    comparison: Comparison,
    ks: Sequence[int],
    find: Callable[[Comparison, str, str], Curves | BenchmarkResult | None],
    show: Callable[[Estimate], str],
    models: Sequence[str] | None = None,
    mark_best: bool = False,
) -> str:
    """A row per model and a column per k of pass@k for each benchmark and the average. Missing results stay empty."""
    columns = _with_average(comparison)
    header = ["model", *(f"{benchmark} pass@{k}" for benchmark in columns for k in ks)]
    rows = []
    for model in models or comparison.models:
        found = [find(comparison, model, benchmark) for benchmark in columns]
        rows.append([model, *(show(curves.pass_at[k]) if curves else "" for curves in found for k in ks)])
    return _table(header, _with_best_marked(rows) if mark_best else rows)


def _scores(comparison: Comparison, model: str, benchmark: str) -> Curves | BenchmarkResult | None:
    if benchmark == AVERAGE:
        return comparison.averages.get(model)
    return comparison.results.get((model, benchmark))


def _gains(comparison: Comparison, model: str, benchmark: str) -> Curves | None:
    if benchmark == AVERAGE:
        return comparison.average_differences.get(model)
    return comparison.differences.get((model, benchmark))


def _every_k(comparison: Comparison, metric: str) -> str:
    """A row per benchmark and model, a column per k. Cells beyond a result's n stay empty."""
    ks = sorted({k for result in comparison.results.values() for k in result.pass_at})
    rows = []
    for benchmark in _with_average(comparison):
        found = {model: _scores(comparison, model, benchmark) for model in comparison.models}
        present = {model: _metrics(curves)[metric] for model, curves in found.items() if curves}
        rows += [
            [benchmark, model, *(_percent(by_k[k]) if k in by_k else "" for k in ks)] for model, by_k in present.items()
        ]
    return _table(["benchmark", "model", *(f"{metric}@{k}" for k in ks)], rows)


def _with_average(comparison: Comparison) -> list[str]:
    """The benchmarks, and the average if there are several."""
    return [*comparison.benchmarks, *([AVERAGE] if len(comparison.benchmarks) > 1 else [])]


def _samples(comparison: Comparison) -> str:
    """Sample statistics: a row per benchmark and model."""
    header = ["benchmark", "model", "problems", "samples per problem"]
    header += ["cut at the length limit", "unanswered", "mean tokens"]
    order = comparison.benchmarks.index
    rows = [
        [
            *(result.benchmark, result.model, str(result.problems), str(result.n)),
            *(f"{share * 100:.2f} %" for share in (result.truncated_share, result.unanswered_share)),
            f"{result.mean_tokens:.1f}",
        ]
        for result in sorted(comparison.results.values(), key=lambda result: order(result.benchmark))
    ]
    return _table(header, rows)


def _table(header: Row, rows: Sequence[Row]) -> str:
    """A Markdown table, padded to be readable as plain text; text aligned left, numbers right."""
    cells = [[_cell(text) for text in row] for row in [header, *rows]]
    texts = sum(name in ("label", "model", "benchmark") for name in header)
    widths = [max(3, *map(len, column)) for column in zip(*cells)]
    aligned = ["<" if column < texts else ">" for column in range(len(header))]
    lines = [
        "| " + " | ".join(f"{text:{side}{width}}" for text, side, width in zip(row, aligned, widths)) + " |"
        for row in cells
    ]
    rules = (f"-{'-' * width}{'-' if side == '<' else ':'}" for side, width in zip(aligned, widths))
    lines.insert(1, f"|{'|'.join(rules)}|")
    return "\n".join(lines) + "\n"


def _with_best_marked(rows: Sequence[Row]) -> list[Row]:
    """Mark each column's highest number in bold, and the second where a third is lower; ties as displayed."""
    columns = [sorted({float(text) for text in column if text}, reverse=True) for column in list(zip(*rows))[1:]]

    def marked(text: str, figures: list[float]) -> str:
        best, second = figures[:-1][:1], figures[:-1][1:2]  # never the lowest
        if text and float(text) in best:
            return f"**{text}**"
        return f"*{text}*" if text and float(text) in second else text

    return [[row[0], *map(marked, row[1:], columns)] for row in rows]


def _percent(estimate: Estimate) -> str:
    return f"{estimate.value * 100:.2f}"


def _range(estimate: Estimate) -> str:
    return f"{estimate.low * 100:.2f} – {estimate.high * 100:.2f}"


def _gain(estimate: Estimate) -> str:
    return f"{estimate.value * 100:+.2f} ({estimate.low * 100:+.2f} to {estimate.high * 100:+.2f})"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _listed(ks: Sequence[int]) -> str:
    return "k = " + " and ".join(map(str, ks))


def _metrics(curves: Curves | BenchmarkResult) -> Mapping[str, Mapping[int, Estimate]]:
    return {"pass": curves.pass_at, "maj": curves.majority_at}


def _csv_rows(
    model: str, benchmark: str, curves: Curves | BenchmarkResult, problems: int, n: int
) -> Iterator[list[object]]:
    for metric, by_k in _metrics(curves).items():
        for k, estimate in by_k.items():
            yield [model, benchmark, metric, k, estimate.value, estimate.low, estimate.high, problems, n]


def _estimates(curves: Curves | BenchmarkResult) -> dict[str, dict[int, dict[str, float]]]:
    return {metric: {k: asdict(estimate) for k, estimate in by_k.items()} for metric, by_k in _metrics(curves).items()}


def _facts(result: BenchmarkResult) -> dict[str, object]:
    return {
        "model": result.model,
        "benchmark": result.benchmark,
        "problems": result.problems,
        "n": result.n,
        "truncated_share": result.truncated_share,
        "unanswered_share": result.unanswered_share,
        "mean_tokens": result.mean_tokens,
        **_estimates(result),
    }
