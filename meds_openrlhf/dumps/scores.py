"""Rewards of responses that have the label as their answer, against all others: from which one on is a rollout right?

A penalty for long responses in the score makes right answers look wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from meds_openrlhf.features.final_answer import same_answer_form

MOST_REWARDS = 10_000  # distinct ones that are compared


class Scores:
    """Counts of rewards, of ``equal`` answers and of ``other`` ones."""

    def __init__(self) -> None:
        self.equal: Counter[float] = Counter()
        self.other: Counter[float] = Counter()

    def add(self, rewards: Sequence[float], answers: Sequence[str | None], truths: Sequence[str | None]) -> None:
        """Count the rewards of responses whose label is known."""
        for reward, answer, truth in zip(rewards, answers, truths):
            if truth and len(self.equal) + len(self.other) < MOST_REWARDS:
                is_equal = answer is not None and same_answer_form(answer) == same_answer_form(truth)
                (self.equal if is_equal else self.other)[reward] += 1

    def better(self, right_from: float) -> tuple[float, int] | None:
        """A reward that halves the mistakes of ``right_from``, and how many right answers it adds; None if none does.

        Answers that equal the label only after algebra count as others.
        """
        values = sorted(self.equal.keys() | self.other.keys())
        wrong_at = {limit: self._wrong(limit) for limit in (right_from, *values)}
        best = min(values, key=lambda value: (wrong_at[value], abs(value - right_from)), default=right_from)
        gained = sum(number for reward, number in self.equal.items() if best <= reward < right_from)
        if not gained or 2 * wrong_at[best] > wrong_at[right_from]:
            return None
        below = max((value for value in values if value < best), default=best)
        return (0.0 if below < 0 <= best else best), gained

    def _wrong(self, limit: float) -> int:
        missed = sum(number for reward, number in self.equal.items() if reward < limit)
        return missed + sum(number for reward, number in self.other.items() if reward >= limit)
