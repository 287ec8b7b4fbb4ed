"""Results: a model's scores on a benchmark, averages over benchmarks, and comparisons of models."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from meds_openrlhf.evaluation.request import Problem
from meds_openrlhf.evaluation.samples import Sample
from meds_openrlhf.features.final_answer import same_answer_form
from meds_openrlhf.rewards.grading import equal
from meds_openrlhf.stats import estimates

METRICS = {"pass": "Pass@k", "maj": "Maj@k"}
AVERAGE = "Avg."  # in place of a benchmark's name


@dataclass(frozen=True)
class BenchmarkResult:
    """A model's results on a benchmark: ``n`` samples of each of its ``problems``.

    ``truncated_share`` is the share of samples cut at the length limit, ``unanswered_share`` of those without an
    answer; ``mean_tokens`` is the samples' mean length. ``scores`` has a row for each problem, named by its id, and a
    column for each metric and k; ``curves`` are the means (see `mean_curves`).
    """

    model: str
    benchmark: str
    problems: int
    n: int
    truncated_share: float
    unanswered_share: float
    mean_tokens: float
    scores: pd.DataFrame = field(repr=False, compare=False)
    curves: pd.DataFrame = field(repr=False, compare=False)


def evaluate(
    model: str, benchmark: str, problems: Sequence[Problem], samples: Sequence[Sample], n: int
) -> BenchmarkResult:
    """Compute scores from the samples 0 to ``n`` - 1 of every problem; all others are ignored."""
    found = {(sample.problem, sample.index): sample for sample in samples}
    by_problem = [[found[problem.id, index] for index in range(n)] for problem in problems]
    right = [sum(sample.right for sample in group) for group in by_problem]
    with ThreadPoolExecutor() as threads:  # that wait for processes which compare answers
        votes = np.array(list(threads.map(votes_of, by_problem)))
    scores = {("pass", k): estimates.pass_at_k(n, right, k) for k in estimates.ks_up_to(n)}
    scores |= {("maj", k): estimates.majority_at_k(votes, k) for k in estimates.ks_up_to(n)}
    table = pd.DataFrame(scores, index=[problem.id for problem in problems])
    used = [sample for group in by_problem for sample in group]
    return BenchmarkResult(
        model=model,
        benchmark=benchmark,
        problems=len(problems),
        n=n,
        truncated_share=sum(sample.truncated for sample in used) / len(used),
        unanswered_share=sum(sample.answer is None for sample in used) / len(used),
        mean_tokens=sum(sample.tokens for sample in used) / len(used),
        scores=table,
        curves=mean_curves([table], estimates.SCORES),
    )


def votes_of(samples: Sequence[Sample]) -> NDArray[np.int64]:
    """The votes of a problem's samples, (n,): RIGHT, NO_VOTE, or for wrong answers 1, 2, ..., the same if equal.

    Wrong answers are equal as right ones are: as mathematics, however they are written.
    """
    votes = np.full(len(samples), estimates.NO_VOTE)
    wrong: dict[str, int] = {}
    known: list[str | None] = []  # an answer of each vote from 1 on, None for one that took too long to compare
    for position, sample in enumerate(samples):
        if sample.right:
            votes[position] = estimates.RIGHT
        elif sample.answer is not None:
            form = same_answer_form(sample.answer)
            if form not in wrong:
                wrong[form] = _vote(sample.answer, known)
            votes[position] = wrong[form]
    return votes


def _vote(answer: str, known: list[str | None]) -> int:
    """The vote of the first ``known`` answer that equals this one; or a new vote, with which the answer is known."""
    for vote, other in enumerate(known, 1):
        verdict = other is not None and equal(other, answer)
        if verdict is None:  # one of both takes too long, and would with all others
            known[vote - 1] = None
            break
        if verdict:
            return vote
    known.append(answer)
    return len(known)


def mean_curves(benchmarks: Sequence[pd.DataFrame], corners: estimates.Corners) -> pd.DataFrame:
    """A row for each metric and k, the benchmarks' columns: their scores' mean ``value``, and its interval's ends.

    Every benchmark has the same weight, however many problems it has, as in the paper's "average of five benchmarks".
    All rows come from the same resamples, so that curves are smooth.
    """
    tables = [scores.to_numpy() for scores in benchmarks]  # (P_b, K) each
    values = np.mean([table.mean(axis=0) for table in tables], axis=0)
    # The last bits of a matrix product depend on the number of threads. Rounding makes reports reproducible.
    rounded = np.round(np.column_stack([values, estimates.mean_intervals(tables, corners)]), 10)
    return pd.DataFrame(rounded, benchmarks[0].columns, ["value", "low", "high"])


class Comparison:
    """The results of models on benchmarks, both in the order of their first result.

    ``ks`` are the k that all results share; averages and differences use only these. ``scores`` and ``gains``
    are by model and benchmark or `AVERAGE`; gains are over the first model, the baseline. A model that lacks a
    benchmark has no average.
    """

    def __init__(self, results: Sequence[BenchmarkResult]) -> None:
        self.results = {(result.model, result.benchmark): result for result in results}
        self.models = list(dict.fromkeys(result.model for result in results))
        self.benchmarks = list(dict.fromkeys(result.benchmark for result in results))
        self.ks = sorted(set.intersection(*(set(estimates.ks_up_to(result.n)) for result in results)))
        self.scores = {place: result.curves for place, result in self.results.items()}
        self.gains: dict[tuple[str, str], pd.DataFrame] = {}
        for model in self.models:
            self._compare(model)

    def _compare(self, model: str) -> None:
        """Add a model's average, and its gains if it is not the baseline."""
        scores, gains = [], []
        for benchmark in self.benchmarks:
            result = self.results.get((model, benchmark))
            baseline = self.results.get((self.models[0], benchmark))
            if result:
                scores.append(self._shared(result.scores))
            if result and baseline and model != self.models[0]:
                gains.append(self._shared(result.scores) - self._shared(baseline.scores))
                self.gains[model, benchmark] = mean_curves(gains[-1:], estimates.DIFFERENCES)
        if len(scores) == len(self.benchmarks):
            self.scores[model, AVERAGE] = mean_curves(scores, estimates.SCORES)
        if len(gains) == len(self.benchmarks):
            self.gains[model, AVERAGE] = mean_curves(gains, estimates.DIFFERENCES)

    def _shared(self, scores: pd.DataFrame) -> pd.DataFrame:
        return scores.loc[:, scores.columns.isin(self.ks, level=1)]
