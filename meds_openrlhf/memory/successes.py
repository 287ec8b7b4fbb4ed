"""How often each prompt was solved: right and all responses of its visits, and their share with decay."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from meds_openrlhf.config.schema import MemorySettings
from meds_openrlhf.json_text import parse_json
from meds_openrlhf.memory.rows import shard_of

if TYPE_CHECKING:
    from typing_extensions import Self  # of Python 3.11's typing

DECAY = MemorySettings.success_decay  # the default, this project's choice and not tuned
MOST_RESPONSES = 1 << 31  # to a prompt in a step
MOST_TEXT = 1 << 24  # bytes of a step's visits in a file, those of 300,000 prompts

Counts = Mapping[str, tuple[int, int]]  # of one step, by the prompt's key: right responses, and all
NO_COUNTS: Counts = {}


class Visit(NamedTuple):
    """The responses to a prompt in a step; ``success`` is remembered from the visits before, None at the first one."""

    right: int
    responses: int
    success: float | None


def count_visits(groups: Iterable[tuple[str, int, int]]) -> Counts:
    """Return the sums of (prompt's key, right responses, all responses): a prompt may come twice in a step."""
    counts: dict[str, tuple[int, int]] = {}
    for prompt, right, responses in groups:
        before = counts.get(prompt, (0, 0))
        counts[prompt] = before[0] + right, before[1] + responses
    return counts


def counts_of_shards(counts: Counts, shards: int) -> list[Counts]:
    """Return the counts of each shard's prompts."""
    parts: list[dict[str, tuple[int, int]]] = [{} for _ in range(shards)]
    for prompt, numbers in counts.items():
        parts[shard_of(prompt, shards)][prompt] = numbers
    return list(parts)


class Successes:
    """The remembered success of prompts: the share of right responses, a visit counting ``decay`` of the next one."""

    def __init__(self, decay: float = DECAY) -> None:
        self.decay = decay
        self._of: dict[str, tuple[float, float]] = {}  # right and all responses, with decay
        self._solved: set[str] = set()
        self.visits = 0

    @property
    def visited(self) -> int:
        """The number of prompts visited so far."""
        return len(self._of)

    @property
    def solved(self) -> int:
        """The number of prompts with a right response so far."""
        return len(self._solved)

    def visits_of(self, counts: Counts) -> dict[str, Visit]:
        """Return a step's visits, with what is remembered before they are added."""
        return {prompt: Visit(right, size, self._success(prompt)) for prompt, (right, size) in counts.items()}

    def add(self, visits: Mapping[str, Visit]) -> None:
        """Remember a step's visits."""
        for prompt, visit in visits.items():
            right, responses = self._of.get(prompt, (0.0, 0.0))
            self._of[prompt] = self.decay * right + visit.right, self.decay * responses + visit.responses
            if visit.right:
                self._solved.add(prompt)
        self.visits += len(visits)

    def to_json(self) -> str:
        """Return what is remembered: ``{"visits": n, "prompts": {key: [right, responses, solved]}}``."""
        prompts = {prompt: (*numbers, prompt in self._solved) for prompt, numbers in self._of.items()}
        return json.dumps({"visits": self.visits, "prompts": prompts}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: bytes, decay: float = DECAY) -> Self:
        """Return what `to_json` wrote. Raises ValueError for anything else."""
        content = parse_json(text)
        match content:
            case {"visits": int(visits), "prompts": dict(prompts)} if visits >= 0:
                found = cls(decay)
                found.visits = visits
            case _:
                raise ValueError("the remembered successes are not an object of visits and prompts")
        for prompt, numbers in prompts.items():
            match numbers:
                case [int() | float() as right, int() | float() as responses, bool(solved)] if (
                    0 <= right <= responses and 0 < responses < float("inf")
                ):
                    found._of[prompt] = float(right), float(responses)
                    found._solved |= {prompt} if solved else set()
                case _:
                    raise ValueError(f"{prompt!r} has the remembered successes {numbers!r}")
        return found

    def _success(self, prompt: str) -> float | None:
        found = self._of.get(prompt)
        return None if found is None else found[0] / found[1]


def require_counts(counts: Counts) -> None:
    """Raise ValueError, naming the prompt, unless all are texts with 0 <= right <= responses, 0 < responses."""
    for prompt, (right, responses) in counts.items():
        if not isinstance(prompt, str):
            raise ValueError(f"counts: the prompt {prompt!r} is not a text")
        prompt.encode()  # a lone surrogate raises UnicodeEncodeError, a ValueError
        if not (type(right) is type(responses) is int and 0 <= right <= responses <= MOST_RESPONSES and responses):
            raise ValueError(f"counts: {prompt!r} has {right!r} right of {responses!r} responses, in whole numbers")


def visits_to_json(visits: Mapping[str, Visit]) -> str:
    """Return ``{"prompt": [right, responses, success], ...}``, for the log."""
    return json.dumps(visits, separators=(",", ":"))


def visits_from_json(text: bytes) -> dict[str, Visit]:
    """Parse a step's visits. Raises ValueError for anything else."""
    if len(text) > MOST_TEXT:
        raise ValueError(f"its visits have more than {MOST_TEXT:,} bytes")
    content = parse_json(text, object_pairs_hook=_without_repeats)
    if not isinstance(content, dict) or not all(
        isinstance(values, list) and len(values) == len(Visit._fields) for values in content.values()
    ):
        raise ValueError("its visits are not an object of lists of three")
    visits = {prompt: Visit(*values) for prompt, values in content.items()}
    require_counts({prompt: visit[:2] for prompt, visit in visits.items()})
    for visit in visits.values():
        if visit.success is not None and not (type(visit.success) in (int, float) and 0 <= visit.success <= 1):
            raise ValueError(f"a visit has the success {visit.success!r}")
    return visits


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a prompt of its visits is repeated")
    return found
