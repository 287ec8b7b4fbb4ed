"""The report over all labels in a folder with comparable samples, including those of earlier evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.evaluation.benchmarks import Benchmark
from meds_openrlhf.evaluation.report import write_report
from meds_openrlhf.evaluation.results import BenchmarkResult, evaluate
from meds_openrlhf.evaluation.samples import Sample, iterate_samples
from meds_openrlhf.evaluation.settings import Settings, read_settings


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
    labels = _labels(out, first, tell)
    results = results_of_labels(out, labels, wanted, benchmarks, n, tell)
    shown = dict.fromkeys(result.model for result in results)
    write_report(out, results, {label: labels[label] for label in shown})


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
            samples = _samples(out / label / f"{benchmark.name}.jsonl", n)
            lacking = len(benchmark.problems) * n - len(samples)
            if not lacking:
                results.append(evaluate(label, benchmark.name, benchmark.problems, samples, n))
            elif samples:
                tell(f"{label} is left out of the report on {benchmark.name}: {lacking} samples are missing")
    return results


def _labels(out: Path, first: Sequence[str], tell: Callable[[str], None]) -> dict[str, Settings]:
    present = sorted(folder.name for folder in out.iterdir() if folder.is_dir())
    labels: dict[str, Settings] = {}
    for label in dict.fromkeys([*first, *present]):
        try:
            settings = read_settings(out / label)
        except ConfigError as error:
            tell(f"{label} is left out of the report: {error.value} {error.hint}")
            continue
        if settings is not None:
            labels[label] = settings
    return labels


def _samples(path: Path, n: int) -> list[Sample]:
    """The first ``n`` samples of every problem, without their texts: they can be gigabytes and no figure needs them."""
    if not path.is_file():
        return []
    return [replace(sample, text="") for sample in iterate_samples(path) if sample.index < n]
