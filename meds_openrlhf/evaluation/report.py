"""The output folder of an evaluation: tables for people and for programs, the curves, and a page with all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from meds_openrlhf.evaluation.curves import pass_at_k_png
from meds_openrlhf.evaluation.intervals import LEVEL, RESAMPLES
from meds_openrlhf.evaluation.results import BenchmarkResult, Comparison
from meds_openrlhf.evaluation.settings import Settings
from meds_openrlhf.evaluation.tables import csv_text, json_text, markdown, models_and_sampling
from meds_openrlhf.files import write_atomically

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


def write_report(
    folder: Path, results: Sequence[BenchmarkResult], settings: Mapping[str, Settings] | None = None
) -> None:
    """Write the five files into ``folder``, each atomically; replaces files of the same names.

    ``settings`` are the sampling settings by label; if given, the page shows them.

    Raises ValueError if the results do not fit in the same table (see `Comparison`).
    """
    comparison = Comparison(results)
    tables = markdown(comparison)
    files: dict[str, str | bytes] = {
        TABLE: tables,
        CSV: csv_text(comparison),
        JSON: json_text(comparison),
        PICTURE: pass_at_k_png(comparison),
        PAGE: _page(comparison, tables, settings),
    }
    for name, content in files.items():  # the page last: the files that it refers to must exist
        write_atomically(folder / name, content)


def first_table(folder: Path) -> str:
    """The overview of the report in ``folder``, with its title; all the rest is in ``report.md``."""
    return (folder / TABLE).read_text().split("\n### ")[0]


def _page(comparison: Comparison, tables: str, settings: Mapping[str, Settings] | None) -> str:
    title = f"# {', '.join(comparison.models)} on {', '.join(comparison.benchmarks)}"
    origin = ["### Models and sampling", "", models_and_sampling(comparison, settings)] if settings else []
    how = ["### How this was computed", "", HOW]
    return "\n".join([title, "", f"![pass@k over k]({PICTURE})", "", tables, *origin, *how])
