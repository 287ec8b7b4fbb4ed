"""Find the demo's known mistake that explains a wrong response, by its written steps or else by its answer alone.

The task (meds_openrlhf/arithmetic/problems.py) defines every mistake and its result, so this judge needs no language
model. It assumes the same mistake throughout a response, as in the task; a policy may also slip midway.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from meds_openrlhf.arithmetic.problems import MISTAKES, Mistake, Working, make_problem, work
from meds_openrlhf.config.errors import ConfigError

_EXPRESSION = re.compile(r"[\d(][\d+\-*()]*[\d)]")
# A minus sign after an operator or at the start is a sign: `15--1` is 15 minus -1.
_STEP = re.compile(r"((?:(?<![\d)])-)?\d+(?:[-+*]-?\d+)+)\s*(?:=|is)\s*(-?\d{1,40})(?!\d)")
_INTEGER = re.compile(r"-?\d{1,40}")

Steps = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Explanation:
    """The kinds of mistake that may explain a response, and the ``evidence`` for them.

    "steps": all steps and the answer match the kind; "first wrong step": only the steps up to the first wrong step
    match; "answer": the steps do not decide, but the answer matches; "nothing": no kind matches.

    A kind has the name of its mistake, or the names of all mistakes with the same steps on this problem, joined by
    " / ".
    """

    kinds: tuple[str, ...]
    evidence: str

    @property
    def kind(self) -> str | None:
        """The only kind that explains the response; None if there is none or there are several."""
        return self.kinds[0] if len(self.kinds) == 1 else None


def explain(
    expression: str, answer: str | None, response: str | None, mistakes: tuple[Mistake, ...] = MISTAKES
) -> Explanation:
    """Explain a wrong ``answer`` to ``expression``; ``response`` is the whole text, None if it was not kept.

    The steps decide if they match a single kind of the ``mistakes``; otherwise, every mistake that leads to the answer
    is possible.
    """
    kinds = kinds_of(expression, mistakes)
    value = int(answer) if answer is not None and _INTEGER.fullmatch(answer) else None
    if response is not None:
        steps = written_steps(response)
        for working, kind in kinds.items():
            if (working.steps, working.answer) == (steps, value):
                return Explanation((kind,), "steps")
        first = _kinds_with_first_wrong_step(expression, steps, kinds)
        if len(first) == 1:
            return Explanation(first, "first wrong step")
    leading = tuple(kind for working, kind in kinds.items() if working.answer == value)
    return Explanation(leading, "answer" if leading else "nothing")


def written_steps(response: str) -> Steps:
    """The steps of a worked solution, each `(left-hand side, result)`, as in `Working`."""
    return tuple((left, int(result)) for left, result in _STEP.findall(response))


def _kinds_with_first_wrong_step(expression: str, steps: Steps, kinds: dict[Working, str]) -> tuple[str, ...]:
    """Kinds whose working matches ``steps`` up to and including the first wrong step; none if all steps are right."""
    right = work(expression).steps
    place = next((place for place, step in enumerate(steps) if step not in right[place : place + 1]), None)
    if place is None:
        return ()
    begun = steps[: place + 1]
    return tuple(kind for working, kind in kinds.items() if working.steps[: place + 1] == begun)


@cache
def kinds_of(expression: str, mistakes: tuple[Mistake, ...] = MISTAKES) -> dict[Working, str]:
    """The working of each mistake that changes the answer, and its name; mistakes with equal workings share a name."""
    right = make_problem(expression).answer
    names: dict[Working, list[str]] = {}
    for mistake in mistakes:
        working = work(expression, mistake)
        if working.answer != right:
            names.setdefault(working, []).append(mistake.name)
    return {working: " / ".join(alike) for working, alike in names.items()}


@cache
def expression_of(prompt_text: str) -> str:
    """The arithmetic problem in a prompt. Raises ConfigError if it does not contain exactly one."""
    found = [text for text in _EXPRESSION.findall(prompt_text) if re.search(r"[+*-]", text) and _is_problem(text)]
    if len(found) != 1:
        hint = f"a prompt has {len(found)} arithmetic problems instead of 1: {prompt_text[:60]!r}"
        raise ConfigError("RUN", None, f"{hint}. Name a run of the demo's task.")
    expression: str = found[0]
    return expression


def _is_problem(text: str) -> bool:
    try:
        make_problem(text)
    except ValueError:
        return False
    return True
