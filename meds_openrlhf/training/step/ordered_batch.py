"""A batch consists of the first prompts, in data order, that pass the filter, whatever order responses arrive in.

Dynamic sampling (DAPO; Yu et al. 2025) draws prompts until enough of them pass its filter. Drawing only as many as are
missing leaves engines idle while the last prompts are judged. So more prompts are started than the batch still needs,
by the pass rate so far; the batch is the same as with one prompt at a time. A prompt started beyond it counts as not
drawn: its responses are discarded, and the next step draws it first, for the policy of that step. A batch therefore
does not depend on the speed of engines, and has no bias towards short responses, which are finished first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

from openrlhf.trainer.ppo_utils.experience import Experience

# Prompts that count as passed before the first is judged, so a new run starts as many prompts as it needs.
PRIOR = 8.0
# The lowest rate that is used; a lower rate would start the whole data set.
LOWEST_RATE = 1 / 16


class PassRate:
    """The share of prompts that pass the filter, averaged over steps; each step weighs half as much as the next."""

    def __init__(self) -> None:
        self._passed = self._judged = PRIOR

    def begin_step(self) -> None:
        """Halve the weight of all prompts so far."""
        self._passed, self._judged = self._passed / 2, self._judged / 2

    def add(self, passed: bool) -> None:
        """Count a prompt."""
        self._passed, self._judged = self._passed + passed, self._judged + 1

    def needed(self, missing: int) -> int:
        """Return how many prompts to start so that ``missing`` of them pass.

        It is the number n whose expected passes, less one standard deviation, are ``missing``. Starting only the
        expected number falls short in half of the steps, and the last prompt then starts on idle engines.
        """
        if not missing:
            return 0
        rate = max(self._passed / self._judged, LOWEST_RATE)
        variance = rate * (1 - rate)  # of one prompt: n * rate - sqrt(n * variance) = missing
        return ceil(missing / rate + (variance + sqrt(variance * (variance + 4 * rate * missing))) / (2 * rate**2))


# A prompt as OpenRLHF's loader yields it: (data source, prompt, label, image), each a list of one item.
Row = Sequence[Any]


@dataclass(eq=False)
class Started:
    """A started prompt; ``samples`` is None until it is answered, and `OrderedBatch.judge` sets the rest.

    ``right``: the number of right samples.
    """

    row: Row
    samples: list[Experience] | None = None
    passes: bool = False
    right: int = 0


class OrderedBatch:
    """The prompts of one batch, in data order; see the module's docstring.

    The batch is full with ``wanted`` prompts. Without a ``rate``, every prompt is expected to pass. Of prompts that are
    filtered out, the first ``spares`` without a right sample go to ``spare_samples``; of the others, ``dropped`` has
    each prompt's text with its right and all samples.
    """

    def __init__(self, wanted: int, rate: PassRate | None = None, spares: int = 0) -> None:
        self._missing, self._missing_spares = wanted, spares
        self._rate = rate
        self._window: deque[Started] = deque()  # started prompts that are not yet in the batch or filtered out
        self._running = self._passed_in_window = 0
        self.samples: list[Experience] = []
        self.spare_samples: list[Experience] = []
        self.dropped: list[tuple[str, int, int]] = []
        self.consumed = self.generated_tokens = 0  # of the batch's prompts and those filtered out
        if rate is not None:
            rate.begin_step()

    @property
    def is_full(self) -> bool:
        """Whether the batch has all the prompts that it needs."""
        return self._missing == 0

    def to_start(self) -> int:
        """Return how many more prompts should be started now."""
        missing = max(self._missing - self._passed_in_window, 0)
        return max(0, (missing if self._rate is None else self._rate.needed(missing)) - self._running)

    def start(self, row: Row) -> Started:
        """Add the next prompt of the data."""
        started = Started(row)
        self._window.append(started)
        self._running += 1
        return started

    def judge(self, started: Started, samples: list[Experience], passes: bool = True, right: int = 0) -> None:
        """Record a prompt's samples, whether they pass the filter, and how many are right."""
        started.samples, started.passes, started.right = samples, passes, right
        self._running -= 1
        self._passed_in_window += passes
        if self._rate is not None:
            self._rate.add(passes)
        self._take_finished_from_front()

    def _take_finished_from_front(self) -> None:
        while self._missing and self._window and self._window[0].samples is not None:
            first = self._window.popleft()
            samples = first.samples or []
            self.consumed += 1
            self.generated_tokens += sum(int(sample.action_mask.sum()) for sample in samples)
            self._passed_in_window -= first.passes
            self._missing -= first.passes
            if first.passes:
                self.samples += samples
            elif samples and not first.right and self._missing_spares:
                self.spare_samples += samples
                self._missing_spares -= 1
            elif samples:
                self.dropped.append((samples[0].prompts[0], first.right, len(samples)))

    def rest(self) -> list[Row]:
        """Return the started prompts beyond the batch, in data order."""
        return [started.row for started in self._window]
