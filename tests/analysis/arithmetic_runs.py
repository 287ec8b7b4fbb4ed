"""Runs of the demo's arithmetic task in which every response makes one known mistake."""

from __future__ import annotations

import random
from pathlib import Path

from meds_openrlhf.arithmetic.problems import MISTAKES, NO_MISTAKE, make_problem, work, write_solution
from meds_openrlhf.data.questions import qwen_math_prompt
from tests.analysis.runs import Rollout, kind, write_run

# Each with three kinds of mistake; two of them give the same wrong answer to the first problem.
EXPRESSIONS = ("(4-3)*5-3", "4*(6-2)", "(6-3)*3-6")
TEMPTING = ("ignored brackets", "flipped subtraction", "off by one")


def write_arithmetic_run(root: Path, *, shuffled: bool = False, texts: bool = True) -> Path:
    """Logits tell the mistakes apart, unless ``shuffled``: then they are of a kind drawn at random."""
    generator = random.Random(7)
    made = [
        [
            _rollout(expression, name, generator, shuffled, texts)
            for expression in EXPRESSIONS
            for name in (*TEMPTING, *TEMPTING, "none")
        ]
        for _ in range(4)
    ]
    return write_run(root, made)


def _rollout(expression: str, name: str, generator: random.Random, shuffled: bool, texts: bool) -> Rollout:
    problem = make_problem(expression)
    mistake = next(one for one in (NO_MISTAKE, *MISTAKES) if one.name == name)
    shown = generator.randrange(len(TEMPTING)) if shuffled else (*TEMPTING, "none").index(name)
    return Rollout(
        prompt=f"arith-{EXPRESSIONS.index(expression)}",
        answer=str(work(expression, mistake).answer),
        correct=name == "none",
        logits=kind(shown),
        text=write_solution(problem, mistake, generator) if texts else None,
        prompt_text=qwen_math_prompt(expression),
    )
