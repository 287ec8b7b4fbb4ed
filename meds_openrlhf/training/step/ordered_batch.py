"""A batch is the first prompts of the data that pass the filter, whatever order they are answered in.

Dynamic sampling (DAPO; Yu et al. 2025) draws prompts until enough of them pass its filter. One after another, this
leaves engines idle while the last verdicts come in. So more prompts are started than are missing: as many as it takes
for the missing ones to pass, at the rate of those before. The batch stays what one after another would give, the first
prompts in the order of the data that pass. A prompt started beyond them counts as not drawn: its responses are thrown
away, and the next step draws it first, for the policy of that step. A batch therefore depends on no engine's speed, and
has no bias towards short responses, which a batch of what finishes first would have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

from openrlhf.trainer.ppo_utils.experience import Experience

# Prompts that count as passed before anything is known; a new run starts with as many prompts as it wants.
PRIOR = 8.0
# A lower rate is not believed: it would start the whole data set.
LOWEST_RATE = 1 / 16


class PassRate:
    """The share of prompts that pass the filter, of this step and, with half the weight of the next, those before."""

    def __init__(self) -> None:
        self._passed = self._judged = PRIOR

    def begin_step(self) -> None:
        """Halve the weight of all prompts so far."""
        self._passed, self._judged = self._passed / 2, self._judged / 2

    def add(self, passed: bool) -> None:
        """Count a prompt."""
        self._passed, self._judged = self._passed + passed, self._judged + 1

    def needed(self, missing: int) -> int:
        """Return how many prompts it takes for ``missing`` of them to pass.

        It is the number n whose expected passes, less one standard deviation, are ``missing``: the mean alone leaves a
        last prompt to be started late in half of the steps, on engines that are empty by then.
        """
        if not missing:
            return 0
        rate = max(self._passed / self._judged, LOWEST_RATE)
        variance = rate * (1 - rate)  # of one prompt: n * rate - sqrt(n * variance) = missing
        return ceil(missing / rate + (variance + sqrt(variance * (variance + 4 * rate * missing))) / (2 * rate**2))


# A prompt as OpenRLHF's loader has it: (data source, prompt, label, image), each a list of one.
Row = Sequence[Any]


@dataclass(eq=False)
class Started:
    """A prompt that was started, and its samples: None while it is not answered, none if it is filtered out."""

    row: Row
    samples: list[Experience] | None = None


class OrderedBatch:
    """The prompts of one batch, in the order of the data; see the module's docstring.

    ``wanted`` prompts make it full. Without a ``rate``, every prompt is expected to pass.
    """

    def __init__(self, wanted: int, rate: PassRate | None = None) -> None:
        self._missing = wanted
        self._rate = rate
        self._window: deque[Started] = deque()  # started, and not yet in the batch or left out
        self._running = self._passed = 0  # in the window
        self.samples: list[Experience] = []
        self.consumed = 0
        if rate is not None:
            rate.begin_step()

    @property
    def is_full(self) -> bool:
        """Whether the batch has all the prompts that it wants."""
        return self._missing == 0

    def to_start(self) -> int:
        """Return how many more prompts should be started now."""
        missing = max(self._missing - self._passed, 0)
        return max(0, (missing if self._rate is None else self._rate.needed(missing)) - self._running)

    def start(self, row: Row) -> Started:
        """Add the next prompt of the data."""
        started = Started(row)
        self._window.append(started)
        self._running += 1
        return started

    def judge(self, started: Started, samples: list[Experience]) -> None:
        """Give a prompt's samples, none if it does not pass."""
        started.samples = samples
        self._running -= 1
        self._passed += bool(samples)
        if self._rate is not None:
            self._rate.add(bool(samples))
        while self._missing and self._window and self._window[0].samples is not None:
            first = self._window.popleft()
            self.samples += first.samples or []
            self.consumed += 1
            self._passed -= bool(first.samples)
            self._missing -= bool(first.samples)

    def rest(self) -> list[Row]:
        """Return the prompts beyond the batch, in the order of the data."""
        return [started.row for started in self._window]
