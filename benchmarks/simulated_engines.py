"""vLLM engines in simulated time: what a decoding step takes, who runs, who waits.

An engine decodes one token of every running response in a step that reads all weights and all their caches:

    seconds = OVERHEAD + weights / BANDWIDTH + caches / BANDWIDTH + responses * 2 * parameters / FLOPS

with the figures of an H200 and a model of 7.6e9 parameters in bfloat16. Prefilling is left out.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf, sqrt
from typing import Any

OVERHEAD = 0.0025  # seconds of a step, whatever runs
BANDWIDTH = 4.0e12  # bytes a second that are reached of 4.8e12
FLOPS = 600e12
PARAMETERS = 7.6e9
CACHE = 57_344  # bytes of a token: 28 layers, 4 heads of 128, keys and values
PROMPT = 150  # tokens

FIXED = OVERHEAD + 2 * PARAMETERS / BANDWIDTH
A_RESPONSE = 2 * PARAMETERS / FLOPS
A_TOKEN = CACHE / BANDWIDTH


def step_seconds(responses: float, cached: float) -> float:
    """Return the seconds of a decoding step of ``responses`` with ``cached`` tokens in all."""
    return FIXED + A_RESPONSE * responses + A_TOKEN * cached


@dataclass(eq=False)
class Call:
    """A prompt sent to an engine: the lengths of its responses in tokens, and how many are not finished yet."""

    engine: SimulatedEngine
    lengths: Sequence[int]
    answer: Any
    missing: int


class SimulatedEngine:
    """An engine that runs up to ``most`` responses at a time, in the order in which they came."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[tuple[int, Call]] = deque()
        # A heap of end and start in decoding steps of this engine, a number that orders equal ends, and the call.
        self._running: list[tuple[float, int, float, Call]] = []
        self._now = self._steps = self._cached = 0.0
        self._numbers = count()
        self.calls = 0

    def add(self, now: float, call: Call) -> None:
        """Send it a prompt at the time ``now``."""
        self._advance(now)
        self.calls += 1
        self._waiting.extend((length, call) for length in call.lengths)
        self._fill()

    def next_event(self) -> float:
        """Return when its next response ends; infinity if it is idle."""
        return self._now + self._seconds(self._running[0][0] - self._steps) if self._running else inf

    def finish_next(self) -> Call | None:
        """Advance to the end of its next response; return its call if that was the last response of the call."""
        self._move(self._running[0][0] - self._steps)
        _, _, started, call = heapq.heappop(self._running)
        self._cached -= PROMPT + self._steps - started
        self._fill()
        call.missing -= 1
        self.calls -= not call.missing
        return None if call.missing else call

    def drop(self, now: float, calls: set[Call]) -> None:
        """Abort calls."""
        self._advance(now)
        self.calls -= len(calls)
        self._waiting = deque(waiting for waiting in self._waiting if waiting[1] not in calls)
        self._running = [running for running in self._running if running[3] not in calls]
        self._cached = sum(PROMPT + self._steps - started for _, _, started, _ in self._running)
        heapq.heapify(self._running)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._most:
            length, call = self._waiting.popleft()
            heapq.heappush(self._running, (self._steps + length, next(self._numbers), self._steps, call))
            self._cached += PROMPT

    def _seconds(self, steps: float) -> float:
        """Return the seconds of so many steps with the responses that run, whose caches grow."""
        responses = len(self._running)
        return steps * step_seconds(responses, self._cached) + A_TOKEN * responses * steps * steps / 2

    def _move(self, steps: float) -> None:
        self._now += self._seconds(steps)
        self._steps += steps
        self._cached += len(self._running) * steps

    def _advance(self, now: float) -> None:
        """Decode until ``now``, before which no response ends."""
        if responses := len(self._running):
            first, grows = step_seconds(responses, self._cached), A_TOKEN * responses / 2
            self._move((sqrt(first * first + 4 * grows * (now - self._now)) - first) / (2 * grows))
        self._now = now


class SimulatedFleet:
    """What `EngineFleet` is to a generator, on simulated engines and a simulated clock.

    ``answer`` makes the lengths of a prompt's responses, and the responses, from the prompt's text.
    """

    def __init__(self, engines: int, most: int, answer: Callable[[str], tuple[Sequence[int], list[Any]]]) -> None:
        self.usable = [SimulatedEngine(most) for _ in range(engines)]
        self.now = 0.0
        self._answer = answer

    def share(self, tokenizer: Any) -> Any:
        """Return the tokenizer, which no engine needs."""
        return tokenizer

    def keep_those_with_weights(self) -> None:
        """Nothing is lost here."""

    def generate(self, *, prompt: str, **_: Any) -> Call:
        """Send a prompt to the engine with the fewest."""
        engine = min(self.usable, key=lambda engine: engine.calls)
        lengths, answer = self._answer(prompt)
        call = Call(engine, lengths, answer, len(lengths))
        engine.add(self.now, call)
        return call

    def wait(self, _calls: Sequence[Call]) -> list[Call]:
        """Advance the clock to the next call of which all responses are finished."""
        while True:
            engine = min(self.usable, key=SimulatedEngine.next_event)
            self.now = engine.next_event()
            if (done := engine.finish_next()) is not None:
                return [done]

    def responses(self, call: Call) -> list[Any]:
        """Return the responses to a call."""
        return list(call.answer)

    def cancel(self, calls: Sequence[Call]) -> None:
        """Abort calls."""
        for engine in self.usable:
            engine.drop(self.now, {call for call in calls if call.engine is engine})
