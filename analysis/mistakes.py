"""Which of the demo's known mistakes explains a wrong response: by its written steps, else by its answer alone.

The task (meds_openrlhf/data/arithmetic.py) knows every mistake and what it leads to, so this judge needs no language
model. It goes by one mistake made throughout, which is how the task makes them; a policy also slips on its way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from meds_openrlhf.arithmetic.problems import MISTAKES, Working, make_problem, work
from meds_openrlhf.config.errors import ConfigError

_EXPRESSION = re.compile(r"[\d(][\d+\-*()]*[\d)]")
# `(?<![\d+*])-`: a minus sign that is no operator; `15--1` is 15 minus -1.
_STEP = re.compile(r"((?:(?<![\d)])-)?\d+(?:[-+*]-?\d+)+)\s*(?:=|is)\s*(-?\d+)")
_INTEGER = re.compile(r"-?\d+")

Steps = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Explanation:
    """The kinds of mistake that lead to a response, and by what ``evidence``.

    "steps": all steps and the answer are the kind's; "first wrong step": the first step that is not the right one is,
    what follows is not; "answer": there is no such step, but the answer is the kind's; "nothing".

    A kind is named after its mistake, or after all that come to the same steps on this problem, with " / " between.
    """

    kinds: tuple[str, ...]
    evidence: str

    @property
    def kind(self) -> str | None:
        """The only kind that explains the response; None where there is none, or where it may be several."""
        return self.kinds[0] if len(self.kinds) == 1 else None


def explain(expression: str, answer: str | None, response: str | None) -> Explanation:
    """What explains a wrong ``answer`` to ``expression``; ``response`` is the whole text, None where it was not kept.

    Steps speak first, as far as one kind alone has them; then every mistake that leads to the answer may be the one.
    """
    kinds = kinds_of(expression)
    value = int(answer) if answer is not None and _INTEGER.fullmatch(answer) else None
    if response is not None:
        steps = written_steps(response)
        for working, kind in kinds.items():
            if (working.steps, working.answer) == (steps, value):
                return Explanation((kind,), "steps")
        first = _kinds_with_first_wrong_step(expression, steps)
        if len(first) == 1:
            return Explanation(first, "first wrong step")
    leading = tuple(kind for working, kind in kinds.items() if working.answer == value)
    return Explanation(leading, "answer" if leading else "nothing")


def written_steps(response: str) -> Steps:
    """The steps of a worked solution, each `(left-hand side, result)`, as `Working` has them."""
    return tuple((left, int(result)) for left, result in _STEP.findall(response))


def _kinds_with_first_wrong_step(expression: str, steps: Steps) -> tuple[str, ...]:
    """Kinds whose working agrees with ``steps`` up to the first that is not the right one; none where all are right."""
    right = work(expression).steps
    place = next((place for place, step in enumerate(steps) if step not in right[place : place + 1]), None)
    if place is None:
        return ()
    begun = steps[: place + 1]
    return tuple(kind for working, kind in kinds_of(expression).items() if working.steps[: place + 1] == begun)


@cache
def kinds_of(expression: str) -> dict[Working, str]:
    """What each mistake that changes the answer comes to on this problem, and its name; equal workings share one."""
    right = make_problem(expression).answer
    names: dict[Working, list[str]] = {}
    for mistake in MISTAKES:
        working = work(expression, mistake)
        if working.answer != right:
            names.setdefault(working, []).append(mistake.name)
    return {working: " / ".join(alike) for working, alike in names.items()}


@cache
def expression_of(prompt_text: str) -> str:
    """The arithmetic problem in a prompt. Raises ConfigError where it does not hold exactly one."""
    found = [one for one in _EXPRESSION.findall(prompt_text) if re.search(r"[+*-]", one) and _is_problem(one)]
    if len(found) != 1:
        hint = f"holds {len(found)} arithmetic problems in place of one; name a run of the demo's task"
        raise ConfigError("RUN", _shortened(prompt_text), hint)
    expression: str = found[0]
    return expression


def explain_all(
    prompt_texts: Sequence[str], answers: Sequence[str | None], responses: Sequence[str | None]
) -> list[Explanation]:
    """`explain` for each of n responses. Raises ConfigError as `expression_of` does."""
    return [explain(expression_of(text), *rest) for text, *rest in zip(prompt_texts, answers, responses)]


def _is_problem(text: str) -> bool:
    try:
        make_problem(text)
    except ValueError:
        return False
    return True


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"
