"""Which labels a response can match, asked before a training or when a data set is made."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from meds_openrlhf.rewards.equality import matches_itself

MOST_UNMATCHED = 0.01  # of a training set's labels; above, the set is not made, and no training starts
_AT_ONCE = 4


def label_text(label: object) -> str | None:
    """The text that answers are compared with; None if the label is missing: null, NaN, empty, a list or a mapping."""
    is_missing = label is None or label != label or isinstance(label, (list, dict))  # NaN is not itself
    return None if is_missing else str(label).strip() or None


def fault_of(label: object) -> str | None:
    """Why no answer can match the label, as in "is empty"; None if one may."""
    if isinstance(label, (list, dict)):
        return f"is a {'list' if isinstance(label, list) else 'mapping'}"
    text = label_text(label)
    if text is None:
        return "is empty" if isinstance(label, str) else "is null"
    return "is a worked solution" if "####" in text or not is_one_value(text) else None


def is_one_value(text: str) -> bool:
    """Whether the text is a line, or an environment such as a matrix; several lines are a solution."""
    return "\n" not in text or "\\begin{" in text


def unmatched(labels: Sequence[str]) -> list[int]:
    """The indices of the labels that do not equal themselves in another spelling: only a copy of these is right.

    Raises ModuleNotFoundError as `equality.equal` does.
    """
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        verdicts = list(threads.map(matches_itself, labels))
    return [place for place, is_matched in enumerate(verdicts) if not is_matched]
