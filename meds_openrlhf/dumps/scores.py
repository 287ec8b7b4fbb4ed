"""Rewards of responses that have the label as their answer, against all others: from which one on is a rollout right?

A penalty for long responses in the score makes right answers look wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from meds_openrlhf.features.final_answer import same_answer_form

MOST_REWARDS = 1_000_000  # distinct ones; of more, nothing is said


class Scores:
    """Counts of rewards, of ``equal`` answers and of ``other`` ones."""

    def __init__(self) -> None:
        self.equal: Counter[float] = Counter()
        self.other: Counter[float] = Counter()

    def add(self, rewards: Sequence[float], answers: Sequence[str | None], truths: Sequence[str | None]) -> None:
        """Count the rewards of responses whose label is known."""
        for reward, answer, truth in zip(rewards, answers, truths):
            if truth and not self._are_too_many:
                is_equal = answer is not None and same_answer_form(answer) == same_answer_form(truth)
                (self.equal if is_equal else self.other)[reward] += 1

    def better(self, right_from: float) -> tuple[float, int] | None:
        """A reward that halves the mistakes of ``right_from``, and how many right answers it adds; None if none does.

        Answers that equal the label only after algebra count as others.
        """
        values = sorted({right_from, *self.equal, *self.other})
        # Mistakes with a limit: equal answers below it, and others from it on.
        missed = accumulate((self.equal[value] for value in values[:-1]), initial=0)
        below = accumulate((self.other[value] for value in values[:-1]), initial=0)
        wrong = dict(zip(values, (few + self.other.total() - many for few, many in zip(missed, below))))
        best = min(values, key=lambda value: (wrong[value], abs(value - right_from)))
        gained = sum(number for reward, number in self.equal.items() if best <= reward < right_from)
        if not gained or 2 * wrong[best] > wrong[right_from] or self._are_too_many:
            return None
        lower = max((value for value in values if value < best), default=best)
        return (0.0 if lower < 0 <= best else best), gained

    @property
    def _are_too_many(self) -> bool:
        return len(self.equal) + len(self.other) > MOST_REWARDS
