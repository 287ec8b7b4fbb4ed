"""Whether two answers are mathematically equal: as texts, as integers, or by math-verify in processes of its own."""

from __future__ import annotations

import re
from importlib.util import find_spec

from meds_openrlhf.runtime.verifier import AnswerVerifier

# Characters; longer content of a box is a derivation, not a value.
LONGEST_VALUE = 256

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_verifier = AnswerVerifier("meds_openrlhf.rewards.comparison")


def equal(gold: str, given: str) -> bool | None:
    """Whether ``given`` equals ``gold``: False if it is longer than `LONGEST_VALUE`, None if comparing takes too long.

    Raises ModuleNotFoundError if math-verify is needed and not installed.
    """
    if len(given) > LONGEST_VALUE:
        return False
    if given == gold:
        return True
    if _INTEGER.fullmatch(given) and _INTEGER.fullmatch(gold):
        return int(given) == int(gold)
    return _verified("equal", gold, given)


def matches_itself(label: str) -> bool:
    """Whether another spelling of the label could equal it. Raises as `equal` does."""
    if _INTEGER.fullmatch(label):
        return True
    return len(label) <= LONGEST_VALUE and bool(_verified("matches_itself", label))


def _verified(question: str, *texts: str) -> bool | None:
    if find_spec("math_verify") is None:
        raise ModuleNotFoundError("No module named 'math_verify'", name="math_verify")
    verdict: bool | None = _verifier.ask(question, *texts)
    return verdict
