"""Small hand-made results for tables, curves and reports."""

from __future__ import annotations

from collections.abc import Mapping

from meds_openrlhf.evaluation.request import Problem
from meds_openrlhf.evaluation.results import BenchmarkResult, evaluate
from meds_openrlhf.evaluation.samples import Sample


def problems(count: int) -> list[Problem]:
    """p0, p1, ... with the answer "1"."""
    return [Problem(f"p{number}", "prompt", "1") for number in range(count)]


def samples(answers: Mapping[str, str]) -> list[Sample]:
    """One sample per letter: ``1`` is right, ``-`` no answer and cut at 9 tokens, all else a wrong answer."""
    return [
        Sample(
            problem, index, f"I say {letter}", 9 if letter == "-" else 4, letter == "-", _answer(letter), letter == "1"
        )
        for problem, letters in answers.items()
        for index, letter in enumerate(letters)
    ]


def _answer(letter: str) -> str | None:
    return None if letter == "-" else letter


def result(model: str, benchmark: str, *letters: str) -> BenchmarkResult:
    """The evaluated samples of p0, p1, ...: a text of letters each."""
    answers = {f"p{number}": text for number, text in enumerate(letters)}
    return evaluate(model, benchmark, problems(len(letters)), samples(answers), len(letters[0]))
