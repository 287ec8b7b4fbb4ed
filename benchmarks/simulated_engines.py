"""vLLM engines in simulated time: what a decoding step takes, who runs, who waits. No process, no GPU, no seconds.

An engine decodes one token of every running response in a step that reads all weights and all their caches:

    seconds = OVERHEAD + weights / BANDWIDTH + caches / BANDWIDTH + responses * 2 * parameters / FLOPS

with the figures of an H200 and a model of 7.6e9 parameters in bfloat16. Prefilling is left out.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import sqrt
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


@dataclass(order=True)
class _Running:
    ends_at: float  # in decoding steps of the engine
    number: int
    started_at: float
    call: Call = field(compare=False)


@dataclass(eq=False)
class Call:
    """A prompt sent to an engine: lengths of its responses, in tokens, and how many of them are still missing."""

    engine: SimulatedEngine
    lengths: Sequence[int]
    answer: Any
    missing: int = 0


class SimulatedEngine:
    """An engine that runs up to ``most`` responses at a time, in the order in which they came."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[tuple[int, Call]] = deque()
        self._running: list[_Running] = []  # a heap
        self._now = self._steps = 0.0
        self._cached = 0.0
        self._numbers = count()
        self.generated = 0.0
        self.calls = 0

    def add(self, now: float, call: Call) -> None:
        """Send it a prompt at the time ``now``."""
        self._advance(now)
        call.missing = len(call.lengths)
        self.calls += 1
        self._waiting.extend((length, call) for length in call.lengths)
        self._fill()

    def next_event(self) -> float | None:
        """Return when its next response ends; None if it is idle."""
        if not self._running:
            return None
        return self._now + self._seconds(self._running[0].ends_at - self._steps)

    def finish_next(self) -> Call | None:
        """Advance to the end of its next response; return its prompt if that was the last one missing."""
        ended = heapq.heappop(self._running)
        self._move(ended.ends_at - self._steps, responses=len(self._running) + 1)
        self._cached -= PROMPT + ended.ends_at - ended.started_at
        self._fill()
        ended.call.missing -= 1
        if ended.call.missing:
            return None
        self.calls -= 1
        return ended.call

    def drop(self, now: float, calls: set[Call]) -> None:
        """Abort prompts."""
        self._advance(now)
        self.calls -= len(calls)
        self._waiting = deque(one for one in self._waiting if one[1] not in calls)
        stays = [one for one in self._running if one.call not in calls]
        self._cached -= sum(PROMPT + self._steps - one.started_at for one in self._running if one.call in calls)
        self._running = stays
        heapq.heapify(stays)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._most:
            length, call = self._waiting.popleft()
            heapq.heappush(self._running, _Running(self._steps + length, next(self._numbers), self._steps, call))
            self._cached += PROMPT

    def _seconds(self, steps: float) -> float:
        """Return the seconds of so many steps with the responses that run."""
        responses = len(self._running)
        first = step_seconds(responses, self._cached)
        return steps * first + A_TOKEN * responses * steps * steps / 2

    def _advance(self, now: float) -> None:
        """Decode until ``now``, before which no response ends."""
        responses, seconds = len(self._running), now - self._now
        if responses:
            first, grows = step_seconds(responses, self._cached), A_TOKEN * responses / 2
            self._move((sqrt(first * first + 4 * grows * seconds) - first) / (2 * grows), responses)
        self._now = now

    def _move(self, steps: float, responses: int) -> None:
        first = step_seconds(responses, self._cached)
        self._now += steps * first + A_TOKEN * responses * steps * steps / 2
        self._steps += steps
        self._cached += responses * steps
        self.generated += responses * steps


class SimulatedFleet:
    """What `EngineFleet` is to a generator, on simulated engines and a clock of its own.

    ``answer`` makes a prompt's responses, and their lengths, from its text.
    """

    def __init__(self, engines: int, most: int, answer: Callable[[str], tuple[Sequence[int], list[Any]]]) -> None:
        self.usable = [SimulatedEngine(most) for _ in range(engines)]
        self.now = 0.0
        self._answer = answer
        self._events: list[tuple[float, int]] = []  # heap of the engines' next events; outdated ones are skipped

    @property
    def generated(self) -> float:
        """The tokens that all engines have decoded."""
        return sum(engine.generated for engine in self.usable)

    def share(self, tokenizer: Any) -> Any:
        """Return the tokenizer, which no engine needs."""
        return tokenizer

    def keep_those_with_weights(self) -> None:
        """Nothing is lost here."""

    def tell(self, line: str) -> None:
        """Say nothing."""

    def generate(self, *, prompt: str, **_: Any) -> Call:
        """Send a prompt to the engine with the fewest."""
        number = min(range(len(self.usable)), key=lambda number: self.usable[number].calls)
        engine = self.usable[number]
        lengths, answer = self._answer(prompt)
        call = Call(engine, lengths, answer)
        engine.add(self.now, call)
        self._note(number)
        return call

    def wait(self, _calls: Sequence[Call]) -> list[Call]:
        """Advance the clock to the next prompt of which all responses are there."""
        while True:
            at, number = heapq.heappop(self._events)
            engine = self.usable[number]
            if engine.next_event() != at:
                continue
            self.now = at
            done = engine.finish_next()
            self._note(number)
            if done is not None:
                return [done]

    def responses(self, call: Call) -> list[Any]:
        """Return a prompt's responses."""
        return list(call.answer)

    def cancel(self, calls: Sequence[Call]) -> None:
        """Abort prompts."""
        for number, engine in enumerate(self.usable):
            engine.drop(self.now, {call for call in calls if call.engine is engine})
            self._note(number)

    def _note(self, number: int) -> None:
        at = self.usable[number].next_event()
        if at is not None:
            heapq.heappush(self._events, (at, number))
