"""Results: a model's scores on a benchmark, averages over benchmarks, and comparisons of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.evaluation.estimators import majority_at_k, pass_at_k, votes_of
from meds_openrlhf.evaluation.intervals import DIFFERENCES, SCORES, Corners, mean_intervals
from meds_openrlhf.evaluation.problems import Problem
from meds_openrlhf.evaluation.samples import Sample


def counted(number: int, thing: str) -> str:
    """Format a count, e.g. ``1 problem`` and ``30 problems``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class Estimate:
    """A mean over problems, from 0 to 1 (differences from -1), and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Curves:
    """pass@k and maj@k by k, of a model or as the difference of two models."""

    pass_at: dict[int, Estimate]
    majority_at: dict[int, Estimate]


@dataclass(frozen=True)
class ProblemScores:
    """Each problem's pass@k and maj@k, (P,) float64 by k, in the order of ``ids``."""

    ids: tuple[str, ...]
    pass_at: Mapping[int, NDArray[np.float64]]
    majority_at: Mapping[int, NDArray[np.float64]]


@dataclass(frozen=True)
class BenchmarkResult:
    """A model's results on a benchmark: ``n`` samples of each of its ``problems``.

    ``truncated_share`` is the share of samples cut at the length limit, ``unanswered_share`` of those without an
    answer; ``mean_tokens`` is the samples' mean length.
    """

    model: str
    benchmark: str
    problems: int
    n: int
    pass_at: dict[int, Estimate]
    majority_at: dict[int, Estimate]
    truncated_share: float
    unanswered_share: float
    mean_tokens: float
    scores: ProblemScores = field(repr=False, compare=False)


def ks_up_to(n: int) -> list[int]:
    """The powers of two up to ``n``, and ``n``. Raises ValueError if ``n`` is below 1."""
    if n < 1:
        raise ValueError(f"n={n}: must be at least 1.")
    return sorted({2**exponent for exponent in range(n.bit_length())} | {n})


def evaluate(
    model: str, benchmark: str, problems: Sequence[Problem], samples: Sequence[Sample], n: int
) -> BenchmarkResult:
    """Compute scores from the samples 0 to ``n`` - 1 of every problem; further samples are ignored.

    Raises ValueError if samples are missing, occur twice, or are of other problems.
    """
    by_problem = _by_problem(problems, samples, n)
    right = np.array([sum(sample.right for sample in group) for group in by_problem])
    with ThreadPoolExecutor() as threads:  # that wait for processes which compare answers
        votes = np.array(list(threads.map(votes_of, by_problem)))
    scores = ProblemScores(
        ids=tuple(problem.id for problem in problems),
        pass_at={k: pass_at_k(n, right, k) for k in ks_up_to(n)},
        majority_at={k: majority_at_k(votes, k) for k in ks_up_to(n)},
    )
    curves = _curves([scores], ks_up_to(n), SCORES)
    used = [sample for group in by_problem for sample in group]
    return BenchmarkResult(
        model=model,
        benchmark=benchmark,
        problems=len(problems),
        n=n,
        pass_at=curves.pass_at,
        majority_at=curves.majority_at,
        truncated_share=sum(sample.truncated for sample in used) / len(used),
        unanswered_share=sum(sample.answer is None for sample in used) / len(used),
        mean_tokens=sum(sample.tokens for sample in used) / len(used),
        scores=scores,
    )


def _by_problem(problems: Sequence[Problem], samples: Sequence[Sample], n: int) -> list[list[Sample]]:
    """Samples 0 to n - 1 of each problem, sorted by index."""
    if not problems:
        raise ValueError("problems: must not be empty.")
    places: dict[str, dict[int, Sample]] = {problem.id: {} for problem in problems}
    for sample in samples:
        if sample.problem not in places:
            raise ValueError(f"samples: {sample.problem!r} is not a problem of the benchmark.")
        if places[sample.problem].setdefault(sample.index, sample) is not sample:
            raise ValueError(f"samples: sample {sample.index} of problem {sample.problem!r} occurs twice.")
    missing = {problem: sum(index not in place for index in range(n)) for problem, place in places.items()}
    lacking = [problem for problem, count in missing.items() if count]
    if lacking:
        raise ValueError(
            f"samples: {sum(missing.values())} of {n * len(problems)} are missing, "
            f"of {len(lacking)} problems ({lacking[0]!r} is the first)."
        )
    return [[place[index] for index in range(n)] for place in places.values()]


def average(results: Sequence[BenchmarkResult], ks: Sequence[int]) -> Curves:
    """A model's unweighted mean over benchmarks, as the paper's "average of five benchmarks".

    Every benchmark has the same weight, however many problems it has; the interval comes from reweighting problems
    within each benchmark. Raises ValueError if the results are of several models, or a result lacks a k.
    """
    models = sorted({result.model for result in results})
    if len(models) != 1:
        raise ValueError(f"results: must be of one model, not of {models}.")
    return _curves([result.scores for result in results], ks, SCORES)


def difference(results: Sequence[BenchmarkResult], baselines: Sequence[BenchmarkResult], ks: Sequence[int]) -> Curves:
    """The gain of a model over a baseline, averaged over the benchmarks, paired problem by problem.

    Raises ValueError if the two were not evaluated on the same problems, or a result lacks a k.
    """
    pairs = list(zip(results, baselines, strict=True))
    for result, baseline in pairs:
        if (result.benchmark, result.scores.ids) != (baseline.benchmark, baseline.scores.ids):
            raise ValueError(
                f"{result.benchmark}: {result.model} and {baseline.model} were evaluated on different problems"
            )
    return _curves([_minus(result.scores, baseline.scores, ks) for result, baseline in pairs], ks, DIFFERENCES)


def _minus(scores: ProblemScores, others: ProblemScores, ks: Sequence[int]) -> ProblemScores:
    return ProblemScores(
        ids=scores.ids,
        pass_at={k: scores.pass_at[k] - others.pass_at[k] for k in ks},
        majority_at={k: scores.majority_at[k] - others.majority_at[k] for k in ks},
    )


def _curves(benchmarks: Sequence[ProblemScores], ks: Sequence[int], corners: Corners) -> Curves:
    """Estimate all k from the same resamples, so that curves are smooth."""
    lacking = sorted({k for k in ks for scores in benchmarks if k not in scores.pass_at})
    if lacking:
        raise ValueError(f"ks: {lacking} were not measured on every benchmark.")
    tables = [  # (P_b, 2 K) each
        np.stack([*(scores.pass_at[k] for k in ks), *(scores.majority_at[k] for k in ks)], axis=1)
        for scores in benchmarks
    ]
    values = np.mean([table.mean(axis=0) for table in tables], axis=0)
    intervals = mean_intervals(tables, corners)
    # The last bits of a matrix product depend on the number of threads. Rounding makes reports reproducible.
    rounded = np.round(np.column_stack([values, intervals]), 10).tolist()
    estimates = [Estimate(value, low, high) for value, low, high in rounded]
    return Curves(dict(zip(ks, estimates)), dict(zip(ks, estimates[len(ks) :])))


class Comparison:
    """The results of models on benchmarks, both in the order of their first result.

    ``ks`` are the k that all results share. A model that lacks a benchmark has no average. Differences are relative to
    the first model, the baseline, on the benchmarks that both have. Raises ValueError if a model has two results on a
    benchmark, or if two models were evaluated on different problems under the same benchmark name.
    """

    def __init__(self, results: Sequence[BenchmarkResult]) -> None:
        if not results:
            raise ValueError("results: must not be empty.")
        self.results = {(result.model, result.benchmark): result for result in results}
        if len(self.results) != len(results):
            raise ValueError("results: a model has several results on a benchmark.")
        self.models = list(dict.fromkeys(result.model for result in results))
        self.benchmarks = list(dict.fromkeys(result.benchmark for result in results))
        self.ks = sorted(set.intersection(*(set(result.pass_at) for result in results)))
        self.averages = {model: average(self._of(model), self.ks) for model in self.models if self._has_all(model)}
        self.differences = {
            (model, benchmark): difference(
                [self.results[model, benchmark]], [self.results[self.models[0], benchmark]], self.ks
            )
            for model in self.models[1:]
            for benchmark in self.benchmarks
            if {(model, benchmark), (self.models[0], benchmark)} <= set(self.results)
        }
        self.average_differences = {
            model: difference(self._of(model), self._of(self.models[0]), self.ks)
            for model in self.models[1:]
            if model in self.averages and self.models[0] in self.averages
        }

    def _of(self, model: str) -> list[BenchmarkResult]:
        return [self.results[model, benchmark] for benchmark in self.benchmarks]

    def _has_all(self, model: str) -> bool:
        return all((model, benchmark) in self.results for benchmark in self.benchmarks)
