"""The report of an evaluation: tables for people and for programs, the curves, and a page with all of it.

It covers all labels in a folder with comparable samples, including those of earlier evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.evaluation.curves import draw
from meds_openrlhf.evaluation.problems import Benchmark
from meds_openrlhf.evaluation.results import BenchmarkResult, Comparison, evaluate
from meds_openrlhf.evaluation.samples import iterate_samples
from meds_openrlhf.evaluation.settings import Settings, read_settings
from meds_openrlhf.evaluation.tables import estimates, json_text, models_and_sampling, sections
from meds_openrlhf.files import MOST_TEXT, read_file, write_atomically
from meds_openrlhf.paths import inside
from meds_openrlhf.stats.figures import write_figure
from meds_openrlhf.stats.intervals import LEVEL, RESAMPLES

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
    benchmarks: Sequence[Benchmark],
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
    benchmarks: Sequence[Benchmark],
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
        for benchmark in benchmarks:
            path = inside(out, f"{label}/{benchmark.name}.jsonl")
            samples = list(iterate_samples(path, texts=False)) if path.is_file() else []
            present = {(sample.problem, sample.index) for sample in samples if sample.index < n}
            lacking = len({(problem.id, index) for problem in benchmark.problems for index in range(n)} - present)
            if not lacking:
                results.append(evaluate(label, benchmark.name, benchmark.problems, samples, n))
            elif present:
                tell(f"{label} is left out of the report on {benchmark.name}: {lacking} samples are missing")
    return results


def write_report(folder: Path, results: Sequence[BenchmarkResult], settings: Mapping[str, Settings]) -> Comparison:
    """Write the five files into ``folder``, each atomically; ``settings`` are the sampling settings by label."""
    comparison = Comparison(results)
    figure, numbers, details = draw(comparison), estimates(comparison), json_text(comparison)
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
