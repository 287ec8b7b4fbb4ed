"""Problems of reasoning-gym, made again from their labels in the processes of `AnswerVerifier`, and scored there.

A label is JSON with all that makes the problem again, and nothing of the problem: some scorers evaluate parts of it as
Python, so a data set names a problem and does not contain it. The settings of a task reach such parts: their texts are
words or operators, neither of which can call anything.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meds_openrlhf.json_text import parse_json
from meds_openrlhf.runtime.verifier import AnswerVerifier

_HEAD = '{"reasoning_gym": '  # how a label begins; no mathematics does
AGAIN = "Make the data set again with `meds data prepare gym:TASK`."
_WORD = re.compile(r"(?!.*(\.\.|__))([A-Za-z0-9_.-]{1,64}|[ !#$%&*+,./:;<=>?@^|~-]{1,3})")
MOST = 10**9  # of size, index and seed: entries of some tasks grow with them
MAKING_SECONDS = 60.0  # of CPU time; some problems take five
_examiners = AnswerVerifier("meds_openrlhf.gym.tasks", "reasoning_gym", remembered=2048)


@dataclass(frozen=True, kw_only=True)
class GymLabel:
    """Problem ``index`` of a data set of ``size`` problems of ``task``, which reasoning-gym makes from ``seed``.

    ``settings`` are the task's, without size and seed. An answer is right if its score is at least ``threshold``.
    ``digest`` is that of question and answer, "" before they are known: another version of reasoning-gym may make
    another problem. Raises ValueError for other values.
    """

    task: str
    settings: dict[str, Any] = field(default_factory=dict)
    size: int
    seed: int
    index: int
    threshold: float = 1.0
    digest: str = ""

    def __post_init__(self) -> None:
        texts = _is_word(self.task) and (self.digest == "" or _is_word(self.digest))
        counts = (self.size, self.seed, self.index)
        numbers = all(type(number) is int and 0 <= number <= MOST for number in counts) and self.index < self.size
        threshold = type(self.threshold) in (int, float) and 0 < self.threshold <= 1
        if not (texts and numbers and threshold and isinstance(self.settings, dict)):
            raise ValueError(f"a label of reasoning-gym has a field that it cannot have. {AGAIN}")
        for name, value in self.settings.items():
            if not (_is_word(name) and _is_plain(value)):
                raise ValueError(f"{name}={str(value)[:80]!r} is not a number, a word, an operator or a list of them.")

    def as_text(self) -> str:
        """The label as a field of a data set."""
        return json.dumps({"reasoning_gym": self.task, **{name: vars(self)[name] for name in _FIELDS}})


_FIELDS = ("settings", "size", "seed", "index", "threshold", "digest")


def is_label(text: str) -> bool:
    """Whether the text is meant as a label of reasoning-gym."""
    return text.startswith(_HEAD)


def read_label(text: str) -> GymLabel:
    """The label in a text. Raises ValueError, with what to do, for another text."""
    if not is_label(text):
        raise ValueError(f"{text[:80]!r} is not a problem of reasoning-gym. Make it with `meds data prepare gym:TASK`.")
    try:
        fields = parse_json(text)
    except ValueError as error:
        raise ValueError(f"a label of reasoning-gym is not JSON ({error}). {AGAIN}") from error
    if "entry" in fields:
        raise ValueError(f"a label contains its problem, as those of earlier versions did. {AGAIN}")
    if fields.keys() != {"reasoning_gym", *_FIELDS}:
        raise ValueError(f"a label of reasoning-gym has the fields {', '.join(fields)}. {AGAIN}")
    return GymLabel(task=fields.pop("reasoning_gym"), **fields)


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and _WORD.fullmatch(value) is not None


def _is_plain(value: Any, depth: int = 3) -> bool:
    """Whether a setting's value is a number, a word, an operator, true, false, null, or a list of them."""
    if isinstance(value, (list, tuple)):
        return depth > 0 and len(value) <= 1000 and all(_is_plain(item, depth - 1) for item in value)
    if isinstance(value, str):
        return _is_word(value)
    return value is None or (isinstance(value, (int, float)) and abs(value) <= MOST**2)


class TaskRefusedError(ValueError):
    """reasoning-gym has no such task, or the task refuses its settings, for a ``reason``."""

    def __init__(self, task: str, reason: str) -> None:
        super().__init__(f"reasoning-gym refuses {task} ({reason})")
        self.reason = reason


@dataclass(frozen=True)
class GymProblem:
    """A problem: its ``answer`` is None if the task has none; ``entry`` is for the scorer alone."""

    label: GymLabel
    text: str  # of the label
    question: str
    answer: str | None
    digest: str
    entry: str

    def is_right(self, answer: str) -> bool | None:
        """Whether the answer reaches the label's threshold by the task's own scorer; None beyond its time or memory."""
        score = _examiners.ask("score", self.text, self.entry, answer)
        return None if score is None else bool(score >= self.label.threshold)


@functools.lru_cache(1024)
def made_of(text: str) -> GymProblem:
    """Make the problem of a label, given as text.

    Raises TaskRefusedError, or ValueError if the text is not a label, or if its problem cannot be made or differs from
    the label's digest; and ModuleNotFoundError if reasoning-gym is not installed.
    """
    label = read_label(text)
    beyond = {"failed": f"it takes more than {MAKING_SECONDS:.0f} s, or too much memory"}
    made = _examiners.ask("make", text, seconds=MAKING_SECONDS) or beyond
    if "refused" in made:
        raise TaskRefusedError(label.task, made["refused"])
    if "failed" in made:
        raise ValueError(f"problem {label.index} of {label.task} cannot be made: {made['failed']}")
    if label.digest not in ("", made["digest"]):
        raise ValueError(f"problem {label.index} of {label.task} is another one in this reasoning-gym. {AGAIN}")
    return GymProblem(label, text, **made)


def require_made(labels: Mapping[str, str]) -> None:
    """Raise ValueError, as `made_of` does, unless all are labels and the first one's problem can be made.

    ``labels`` are texts by where they stand, such as "row 3", which the message begins with.
    """
    for place, text in labels.items():
        try:
            read_label(text)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
    for text in [*labels.values()][:1]:
        made_of(text)
