"""The report of a study, made of its results alone: tables, figures, and a verdict on every claim.

    python -m studies.report studies/laboratory.yaml [--out FOLDER]
    python -m studies.report studies/forks.yaml --against dapo+dapo-again

The first writes report.md, runs.csv (a line per finished run) and figures/*.png; the second prints how methods differ
from another than the study's first, or from the mean of several. docs/studies.md says how they come about.

Claims are judged by the rule of all studies, from few paired runs. The paired difference of a claim is that of its two
methods with the same task and seed. Its mean has an interval, the bootstrap's or Student's, and in the claimed
direction

- high end below ``matters``, or below 0                 the claim does not hold
- otherwise, low end above 0                             it holds
- otherwise                                              it is undecided: more seeds are needed

A claim is not judged before all of its runs are finished, because stopping when the result looks good produces false
findings; and not with fewer seeds than `INTERVALS` says, whose intervals are too narrow, or too wide to be of use.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.command_line import exit_code_of
from meds_openrlhf.config.errors import ConfigError, suggestion
from meds_openrlhf.files import write_atomically
from meds_openrlhf.runs.metrics import late_mean
from meds_openrlhf.stats.estimates import (
    ENDS,
    Array,
    Interval,
    bootstrap_interval,
    interquartile_mean,
    ks_up_to,
    t_interval,
)
from meds_openrlhf.stats.presentation import COLORS, legend_below, markdown, panels, write_figure
from studies.results import Result, read_results, runs_csv, value_of
from studies.study import INTERVALS, PASS_AT, Claim, Key, Study, load_study

Results = Mapping[Key, Result]  # of the finished runs
Side = tuple[str, str]  # a method and a metric of it
STYLES = ("-", "--", ":", "-.")
Course = Mapping[float, float | None]  # a run's values by step, or by k
DIFFERENCE = ["difference", "interval", "t-interval", "seeds"]


def differences_of(study: Study, results: Results, sides: tuple[Side, Side], tasks: Sequence[str]) -> tuple[Array, int]:
    """The paired differences (T, S) of two sides, of the seeds with both in every task; and how many are missing."""
    gaps = np.subtract(*(_values(study, results, side, tasks) for side in sides))
    missing = np.isnan(gaps)
    return gaps[:, ~missing.any(axis=0)], int(missing.sum())


def _values(study: Study, results: Results, side: Side, tasks: Sequence[str]) -> Array:
    """The values (T, S) of a method's metric, or the mean of several methods', A+B; NaN where there is none."""
    methods, metric = side
    found = [
        [[value_of(study, results, (task, method, seed), metric) for seed in study.seeds] for task in tasks]
        for method in methods.split("+")
    ]
    means: Array = np.array(found, float).mean(axis=0)
    return means


def pooled_interval(study: Study, results: Results, sides: tuple[Side, Side], gaps: Array) -> Interval:
    """Student's interval of paired differences (1, S) of one task, with the error of all methods with the same metric.

    The error is what a method and a seed, added, leave of a run's value: of M methods, (M - 1) (S - 1) degrees.
    """
    from scipy import stats

    (task,) = study.tasks
    table = np.array([_values(study, results, (method, sides[0][1]), [task])[0] for method in study.methods])
    table = table[:, np.isfinite(table).all(axis=0)]
    degrees = (len(table) - 1) * (table.shape[1] - 1)
    left = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    shares = sum(1 / len(methods.split("+")) for methods, _ in sides)  # 2, or less where a side is a mean of several
    half = stats.t.ppf(ENDS[1], degrees) * np.sqrt(shares * (left**2).sum() / degrees / gaps.shape[1])
    return float(gaps.mean() - half), float(gaps.mean() + half)


def judge(study: Study, results: Results, claim: Claim) -> tuple[str, Array]:
    """The verdict on a claim in words, and the paired differences (T, S) that it rests on."""
    tasks = claim.tasks or tuple(study.tasks)
    gaps, missing = differences_of(study, results, claim.sides, tasks)
    if missing:
        return f"not judged yet: {missing} of {len(tasks) * len(study.seeds)} pairs are missing", gaps
    interval = (-np.inf, np.inf)
    if len(study.seeds) >= INTERVALS[study.rule.interval]:
        interval = interval_of(study, results, claim.sides, gaps)
    return verdict_of(interval, claim, len(study.seeds)), gaps


def interval_of(study: Study, results: Results, sides: tuple[Side, Side], gaps: Array) -> Interval:
    """The study's interval of paired differences (T, S)."""
    if study.rule.interval == "pooled":
        return pooled_interval(study, results, sides, gaps)
    return {"bootstrap": bootstrap_interval, "t": t_interval}[study.rule.interval](gaps)


def verdict_of(interval: Interval, claim: Claim, seeds: int) -> str:
    """The verdict that an interval of the paired difference gives."""
    low, high = interval if claim.direction == "higher" else (-interval[1], -interval[0])
    if high < claim.matters or high < 0:
        return "does not hold"
    return "holds" if low > 0 else f"cannot be decided with {seeds} seed{'' if seeds == 1 else 's'}"


def write_report(study: Study, out: Path) -> dict[str, str]:
    """Write the report into ``out``; returns the verdicts by claim."""
    results = read_results(study)
    judged = {name: judge(study, results, claim) for name, claim in study.claims.items()}
    tables = {
        "Claims": _claims(study, results, judged),
        "Paired differences": _differences(study, results, next(iter(study.methods)), study.rule.primary),
        "Tokens, and what the memory changes": _costs(study, results),
        "Agreement of clusters with known mistakes": _agreement(study, results),
    }
    full = {name: table for name, table in tables.items() if len(table)}
    texts = [f"## {name}\n\n{markdown(table, left=len(table.columns))}\n" for name, table in full.items()]
    write_atomically(out / "report.md", "\n".join([f"# {study.name}\n", *texts]))
    write_atomically(out / "runs.csv", runs_csv(study, results))
    for name, figure in _figures(study, results).items():
        write_figure(figure, out / "figures" / f"{name}.png")
    return {name: verdict for name, (verdict, _) in judged.items()}


def _claims(study: Study, results: Results, judged: Mapping[str, tuple[str, Array]]) -> pd.DataFrame:
    rows = []
    for name, (verdict, gaps) in judged.items():
        claim = study.claims[name]
        other = f" ({claim.than_metric})" if claim.than_metric else ""
        compared = f"{claim.metric}, {claim.method} - {claim.than}{other}"
        rows.append([name, claim.says, compared, verdict, *_difference(study, results, claim.sides, gaps)])
    return pd.DataFrame(rows, columns=["claim", "says", "compared", "verdict", *DIFFERENCE])


def _difference(study: Study, results: Results, sides: tuple[Side, Side], gaps: Array) -> list[str]:
    """The mean, the bootstrap's interval or the study's pooled one, Student's interval, and the number of seeds."""
    if gaps.shape[1] < 2:
        return [""] * len(DIFFERENCE)
    is_pooled = study.rule.interval == "pooled"
    first = pooled_interval(study, results, sides, gaps) if is_pooled else bootstrap_interval(gaps)
    intervals = [f"{low:+.4f} to {high:+.4f}" for low, high in (first, t_interval(gaps))]
    return [f"{gaps.mean():+.4f}", *intervals, str(gaps.shape[1])]


def _differences(study: Study, results: Results, base: str, metrics: Sequence[str]) -> pd.DataFrame:
    """Every method against ``base``, over all tasks and in each."""
    others = [method for method in study.methods if method not in base.split("+")]
    rows = []
    spans = {"all": tuple(study.tasks), **({task: (task,) for task in study.tasks} if len(study.tasks) > 1 else {})}
    for metric, (span, tasks), method in itertools.product(metrics, spans.items(), others):
        sides = (method, metric), (base, metric)
        gaps, missing = differences_of(study, results, sides, tasks)
        difference = _difference(study, results, sides, gaps)
        rows.append([metric, span, method, *difference, f"{missing} missing" if missing else ""])
    return pd.DataFrame(rows, columns=["metric", "tasks", f"method (against {base})", *DIFFERENCE, "pairs"])


COSTS = ("rollout/generated_tokens", "rollout/trained_tokens")
LATE = (
    *("meds/penalty_amplitude", "rollout/distinct_wrong_answers", "rollout/unanswered_rate"),
    *("meds/accuracy", "policy_entropy", "meds/eigen_ratio_within_window"),
)


def _costs(study: Study, results: Results) -> pd.DataFrame:
    """Means over seeds, by task and method: tokens of a run in thousands, and metrics of the last quarter of steps."""
    rows = []
    for task, method in itertools.product(study.tasks, study.methods):
        runs = [result.curves for key, result in results.items() if key[:2] == (task, method)]
        totals = [[sum(value for _, value in run[name]) / 1000 for run in runs if name in run] for name in COSTS]
        late = [[late_mean([value for _, value in run[name]]) for run in runs if run.get(name)] for name in LATE]
        cells = [f"{np.mean(found):.0f}" if found else "" for found in totals]
        if any(totals):  # the first study's runs did not count their tokens
            rows.append([task, method, *cells, *(f"{np.mean(found):.3f}" if found else "" for found in late)])
    return pd.DataFrame(rows, columns=["task", "method", *(f"{name}, thousands" for name in COSTS), *LATE])


def _agreement(study: Study, results: Results) -> pd.DataFrame:
    """The interquartile mean over seeds of each agreement, by task with known mistakes and method.

    It is the adjusted Rand index, or in older results the share of pairs.
    """
    names = list(dict.fromkeys(name for result in results.values() for name in result.agreement))
    names = [name for name in names if name.endswith("/rand")] or names
    known = [task for task in study.tasks if study.tasks[task].known_mistakes]
    rows = []
    for task, method in itertools.product(known, study.methods):
        found = [result.agreement for key, result in results.items() if key[:2] == (task, method)]
        scores = [[run[name] for run in found if name in run] for name in names]
        rows.append([task, method, *(f"{interquartile_mean(s):.4f}" if s else "missing" for s in scores)])
    return pd.DataFrame(rows, columns=["task", "method", *names])


def _figures(study: Study, results: Results) -> dict[str, Figure]:
    """Every figure that has data, by its file's name."""

    def at_every_k(run: Result) -> Course:
        return {k: run.metric(f"pass@{k}", study.rule.last) for k in ks_up_to(run.n)}

    drawn = {"eigen-ratio": _draw_courses(study, results, _over_steps("meds/eigen_ratio_window"), "top-1 eigen ratio")}
    for metric in study.rule.primary:
        name = f"curves-{metric.replace('@', '-').replace('/', '-')}"
        drawn[name] = _draw_courses(study, results, _over_steps(metric), metric)
    drawn["pass-at-k"] = _draw_courses(study, results, at_every_k, "pass@k", "k")
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _over_steps(metric: str) -> Callable[[Result], Course]:
    """A run's metric over steps: of the evaluations if it is pass@k, else of training."""
    if at := PASS_AT.fullmatch(metric):
        return lambda run: {step: run.pass_at(step, at) for step in run.evaluated}
    return lambda run: {step: value for step, value in run.curves.get(metric, [])}


def _draw_courses(
    study: Study, results: Results, course: Callable[[Result], Course], ylabel: str, xlabel: str = "training step"
) -> Figure | None:
    """A panel per task that has runs: a color and style per method, thin for seeds, thick for interquartile means."""
    courses = {key: found for key, run in results.items() if (found := course(run))}
    tasks = [task for task in study.tasks if task in {key[0] for key in courses}]
    if not tasks:
        return None
    figure, grid = panels(tasks, width=4.4, height=3.0, xlabel=xlabel, ylabel=ylabel)
    looks = {
        method: {"color": COLORS[number % len(COLORS)], "linestyle": STYLES[number // len(COLORS) % len(STYLES)]}
        for number, method in enumerate(study.methods)
        if method in {key[1] for key in courses}
    }
    for (task, axes), method in itertools.product(zip(tasks, grid), looks):
        seeds = [found for key, found in courses.items() if key[:2] == (task, method)]
        for found in seeds:
            axes.plot(list(found), list(found.values()), linewidth=0.6, alpha=0.45, **looks[method])
        shared = sorted(set.intersection(*map(set, seeds))) if seeds else []
        axes.plot(
            shared, [interquartile_mean([run[x] for run in seeds]) for x in shared], linewidth=2.2, **looks[method]
        )
        if xlabel == "k":
            axes.set_xscale("log", base=2)
    legend_below(figure, looks)
    return figure


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report and print the verdicts."""
    parser = argparse.ArgumentParser(prog="python -m studies.report", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path, metavar="FILE", help="e.g. studies/laboratory.yaml")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--out", type=Path, metavar="FOLDER", help="folder to write to (default: results/NAME)")
    against = "write nothing, print the differences to this method or the mean of several, A+B, also of training's end"
    either.add_argument("--against", metavar="METHOD", help=against)
    arguments = parser.parse_args(argv)

    def report() -> None:
        study = load_study(arguments.file)
        if base := arguments.against:
            for method in base.split("+"):
                if method not in study.methods:
                    hint = suggestion(method, study.methods)
                    raise ConfigError("--against", method, f"is not a method of this study. {hint}")
            print(markdown(_differences(study, read_results(study), base, [*study.rule.primary, *LATE]), left=3))
            return
        for name, verdict in write_report(study, arguments.out or Path("results") / study.name).items():
            print(f"{name}: {verdict}")

    return exit_code_of(report)


if __name__ == "__main__":
    sys.exit(main())
