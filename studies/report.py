"""The report of a study, made of its results alone: tables, figures, and a verdict on every claim.

    python -m studies.report studies/laboratory.yaml [--out FOLDER]

It writes report.md, runs.csv (a line per finished run) and figures/*.png. docs/studies.md says how they come about.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from analysis.command_line import exit_code_of
from meds_openrlhf.files import write_atomically
from meds_openrlhf.report.output import markdown_table, write_figure
from meds_openrlhf.results.estimators import ks_up_to
from meds_openrlhf.results.figures import COLORS
from meds_openrlhf.results.paired import Array, bootstrap_interval, interquartile_mean, t_interval
from studies import verdicts
from studies.results import Result, read_results, runs_csv
from studies.study import PASS_AT, Study, load_study
from studies.verdicts import Results

Rows = list[list[str]]
STYLES = ("-", "--", ":", "-.")
Course = Mapping[float, float | None]  # a run's values by step, or by k
DIFFERENCE = ["difference", "interval", "t-interval", "seeds"]


def write_report(study: Study, out: Path) -> dict[str, str]:
    """Write the report into ``out``; returns the verdicts by claim."""
    results = read_results(study)
    judged = {name: verdicts.judge(study, results, claim) for name, claim in study.claims.items()}
    tables = {
        "Claims": _claims(study, judged),
        "Paired differences": _differences(study, results),
        "Agreement of clusters with known mistakes": _agreement(study, results),
    }
    texts = [f"## {name}\n\n{markdown_table(head, rows, '<' * len(head))}\n" for name, (head, *rows) in tables.items()]
    write_atomically(out / "report.md", "\n".join([f"# {study.name}\n", *texts]))
    write_atomically(out / "runs.csv", runs_csv(study, results))
    for name, figure in _figures(study, results, judged).items():
        write_figure(figure, out / "figures" / f"{name}.png")
    return {name: verdict for name, (verdict, _) in judged.items()}


def _claims(study: Study, judged: dict[str, tuple[str, Array]]) -> Rows:
    rows = [["claim", "says", "compared", "verdict", *DIFFERENCE]]
    for name, (verdict, gaps) in judged.items():
        claim = study.claims[name]
        other = f" ({claim.than_metric})" if claim.than_metric else ""
        compared = f"{claim.metric}, {claim.method} - {claim.than}{other}"
        rows.append([name, claim.says, compared, verdict, *_difference(gaps)])
    return rows


def _difference(gaps: Array) -> list[str]:
    if gaps.shape[1] < 2:
        return [""] * len(DIFFERENCE)
    intervals = [f"{low:+.4f} to {high:+.4f}" for low, high in (bootstrap_interval(gaps), t_interval(gaps))]
    return [f"{gaps.mean():+.4f}", *intervals, str(gaps.shape[1])]


def _differences(study: Study, results: Results) -> Rows:
    """Every method against the first, over all tasks and in each, in every primary metric."""
    first, *others = study.methods
    rows = [["metric", "tasks", f"method (against {first})", *DIFFERENCE, "pairs"]]
    spans = {"all": tuple(study.tasks), **({task: (task,) for task in study.tasks} if len(study.tasks) > 1 else {})}
    for metric, (span, tasks), method in itertools.product(study.rule.primary, spans.items(), others):
        gaps, missing = verdicts.differences_of(study, results, ((method, metric), (first, metric)), tasks)
        rows.append([metric, span, method, *_difference(gaps), f"{missing} missing" if missing else ""])
    return rows


def _agreement(study: Study, results: Results) -> Rows:
    """The interquartile mean over seeds of each agreement, by task with known mistakes and method."""
    names = list(dict.fromkeys(name for result in results.values() for name in result.agreement))
    rows = [["task", "method", *names]]
    for task, method in itertools.product(study.tasks, study.methods):
        found = [result.agreement for key, result in results.items() if key[:2] == (task, method)]
        if study.tasks[task].known_mistakes:
            scores = [[run[name] for run in found if name in run] for name in names]
            means = (f"{interquartile_mean(values):.4f}" if values else "missing" for values in scores)
            rows.append([task, method, *means])
    return rows


def _figures(study: Study, results: Results, judged: Mapping[str, tuple[str, Array]]) -> dict[str, Figure]:
    """Every figure that has data, by its file's name."""
    found = {"eigen-ratio": _draw_courses(study, results, _over_steps("meds/eigen_ratio_window"), "top-1 eigen ratio")}
    for metric in study.rule.primary:
        name = f"curves-{metric.replace('@', '-').replace('/', '-')}"
        found[name] = _draw_courses(study, results, _over_steps(metric), metric)

    def at_every_k(run: Result) -> Course:
        return {k: run.metric(f"pass@{k}", study.rule.last) for k in ks_up_to(run.n)}

    found["pass-at-k"] = _draw_courses(study, results, at_every_k, "pass@k", "k")
    found["differences"] = _draw_differences(study, {name: on for name, on in judged.items() if on[1].shape[1] > 1})
    for figure in found.values():
        lines = {label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels())}
        if lines:
            figure.legend(lines.values(), lines.keys(), loc="outside right upper", fontsize="small", frameon=False)
    return {name: figure for name, figure in found.items() if figure.axes}


def _over_steps(metric: str) -> Callable[[Result], Course]:
    """A run's metric over steps: of the evaluations if it is pass@k, else of training."""
    if at := PASS_AT.fullmatch(metric):
        return lambda run: {step: run.pass_at(step, int(at[1])) for step in run.evaluated}
    return lambda run: {step: value for step, value in run.curves.get(metric, [])}


def _draw_courses(
    study: Study, results: Results, course: Callable[[Result], Course], ylabel: str, xlabel: str = "training step"
) -> Figure:
    """A panel per task that has runs: a colour and style per method, thin for seeds, thick for interquartile means."""
    courses = {key: found for key, run in results.items() if (found := course(run))}
    tasks = [task for task in study.tasks if task in {key[0] for key in courses}]
    figure = Figure(figsize=(4.4 * max(len(tasks), 1), 3.2), layout="constrained")
    for task, axes in zip(tasks, figure.subplots(1, len(tasks), squeeze=False)[0] if tasks else ()):
        for number, method in enumerate(study.methods):
            look = {"color": COLORS[number % len(COLORS)], "linestyle": STYLES[number // len(COLORS) % len(STYLES)]}
            seeds = [found for key, found in courses.items() if key[:2] == (task, method)]
            for found in seeds:
                axes.plot(list(found), list(found.values()), linewidth=0.6, alpha=0.45, **look)
            shared = sorted(set.intersection(*map(set, seeds))) if seeds else []
            middle = [interquartile_mean([found[x] for found in seeds]) for x in shared]
            axes.plot(shared, middle, linewidth=2.2, label=method if seeds else None, **look)
        axes.set(title=task, xlabel=xlabel, ylabel=ylabel)
        if xlabel == "k":
            axes.set_xscale("log", base=2)
    return figure


def _draw_differences(study: Study, judged: Mapping[str, tuple[str, Array]]) -> Figure:
    """A panel per claim, since claims have different units: dots for tasks and seeds, a bar for the interval."""
    figure = Figure(figsize=(7.0, 1.25 * max(len(judged), 1)), layout="constrained")
    for number, (name, (verdict, gaps)) in enumerate(judged.items()):
        axes = figure.add_subplot(len(judged), 1, number + 1)
        for row, task in enumerate(study.claims[name].tasks or study.tasks):
            axes.plot(gaps[row], [0.35] * len(gaps[row]), "o", markersize=4, alpha=0.7, color=COLORS[row], label=task)
        axes.plot(bootstrap_interval(gaps), [0, 0], color="black", linewidth=2)
        axes.plot([gaps.mean()], [0], "D", color="black", markersize=5)
        axes.axvline(0, color="#999999", linewidth=0.8)
        axes.set(ylim=(-0.3, 0.65), yticks=[])
        axes.set_title(f"{name}: {verdict}", fontsize=9, loc="left")
    return figure


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report and print the verdicts."""
    parser = argparse.ArgumentParser(prog="python -m studies.report", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path, metavar="FILE", help="e.g. studies/laboratory.yaml")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder to write to (results/NAME)")
    arguments = parser.parse_args(argv)

    def report() -> None:
        study = load_study(arguments.file)
        for name, verdict in write_report(study, arguments.out or Path("results") / study.name).items():
            print(f"{name}: {verdict}")

    return exit_code_of(report)


if __name__ == "__main__":
    sys.exit(main())
