"""Results as Markdown in the paper's layout, as a data frame for CSV, and as JSON with all details.

Markdown shows percentages with two decimals; CSV and JSON hold shares from 0 to 1 as they were computed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pandas as pd

from meds_openrlhf.evaluation.results import AVERAGE, METRICS, Comparison
from meds_openrlhf.evaluation.settings import Settings
from meds_openrlhf.stats.intervals import LEVEL
from meds_openrlhf.stats.tables import markdown
from meds_openrlhf.terminal import counted

# How an estimate is shown, in percent.
_PERCENT, _RANGE, _GAIN = "{value:.2f}", "{low:.2f} – {high:.2f}", "{value:+.2f} ({low:+.2f} to {high:+.2f})"

Table = Mapping[tuple[str, str], pd.DataFrame]  # by model and benchmark


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
    sizes = {result.benchmark: result.problems for result in comparison.results.values()}
    ns = sorted({result.n for result in comparison.results.values()})
    benchmarks = ", ".join(f"{name} ({counted(sizes[name], 'problem')})" for name in comparison.benchmarks)
    drawn = f"n = {' and '.join(map(str, ns))} samples of every problem. Benchmarks: {benchmarks}."
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
