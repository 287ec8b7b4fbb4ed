"""How long a step's generation takes when dynamic filtering leaves prompts out: the real generator, simulated engines.

`RolloutGenerator` sends prompts to engines that exist only in simulated time, and filters what comes back. An engine
decodes one token of every running response in a step that reads all weights and all their caches, with the figures of
an H200 and a model of 7.6e9 parameters in bfloat16. From the repository's root:

    python -m benchmarks.generation --sequences 128

A table row holds medians of simulated seconds: of the generator as it is; `ideal`, if exactly the prompts of the batch
are started, at once; and `before`, if a prompt is replaced when it is filtered out and not earlier.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, product
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from meds_openrlhf.config import MedsSettings
from meds_openrlhf.training.openrlhf import cpu

if not cpu.has_cuda():
    cpu.install()  # before anything of OpenRLHF's

from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from benchmarks.table import make_parser
from meds_openrlhf.training.openrlhf.access import parse_openrlhf_arguments
from meds_openrlhf.training.step.rollout import RolloutGenerator

SAMPLES = 16
SEQUENCES = 738  # at a time in an engine, as `meds plan` says of a 7B model on an H200
MEAN, CUT = 900, 3072  # tokens of a response; log-normal, half of the variance between prompts
OF_PROMPTS, OF_RESPONSES = 0.5, 0.62  # deviations of the logarithm
CASES = (8, 64), (0.0, 0.5, 0.8)  # engines, and shares of prompts that are filtered out
OVERHEAD = 0.0025  # seconds of a step, whatever runs
BANDWIDTH = 4.0e12  # bytes a second that are reached of 4.8e12
FLOPS = 600e12
PARAMETERS = 7.6e9
CACHE = 57_344  # bytes of a token: 28 layers, 4 heads of 128, keys and values
PROMPT = 150  # tokens
A_TOKEN = CACHE / BANDWIDTH


def step_seconds(responses: float, cached: float) -> float:
    """Return the seconds of a decoding step of ``responses`` with ``cached`` tokens in all."""
    return OVERHEAD + 2 * PARAMETERS / BANDWIDTH + 2 * PARAMETERS / FLOPS * responses + A_TOKEN * cached


@dataclass(eq=False)
class Call:
    """A prompt sent to an engine, its responses, and how many are not finished yet."""

    engine: SimulatedEngine
    answer: list[Any]
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

    def add(self, now: float, call: Call, lengths: Sequence[int]) -> None:
        """Send it a prompt at the time ``now``, whose responses take so many tokens."""
        self._advance(now)
        self.calls += 1
        self._waiting.extend((length, call) for length in lengths)
        self._fill()

    def next_event(self) -> float:
        """Return when its next response ends; infinity if it is idle."""
        return self._now + self._seconds(self._running[0][0] - self._steps) if self._running else math.inf

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
            self._move((math.sqrt(first * first + 4 * grows * (now - self._now)) - first) / (2 * grows))
        self._now = now


class SimulatedFleet:
    """What `EngineFleet` is to a generator, in simulated time; ``answer`` makes lengths and responses of a prompt."""

    def __init__(self, engines: int, most: int, answer: Callable[[str], tuple[Sequence[int], list[Any]]]) -> None:
        self.usable = [SimulatedEngine(most) for _ in range(engines)]
        self.now = 0.0
        self._answer = answer

    def keep_those_with_weights(self) -> None:
        """Nothing is lost here."""

    def generate(self, *, prompt: str, **_: Any) -> Call:
        """Send a prompt to the engine with the fewest."""
        engine = min(self.usable, key=lambda engine: engine.calls)
        lengths, answer = self._answer(prompt)
        call = Call(engine, answer, len(lengths))
        engine.add(self.now, call, lengths)
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
        return call.answer

    def cancel(self, calls: Sequence[Call]) -> None:
        """Abort calls."""
        for engine in self.usable:
            engine.drop(self.now, {call for call in calls if call.engine is engine})


def answer(prompt: str, filtered: float) -> tuple[list[int], list[dict[str, Any]]]:
    """Return lengths of responses to a prompt, a number, and responses: half are right, or none in a share of them."""
    draws = np.random.default_rng([0, int(prompt)])
    typical = draws.normal(math.log(MEAN) - (OF_PROMPTS**2 + OF_RESPONSES**2) / 2, OF_PROMPTS)
    lengths = np.minimum(np.exp(draws.normal(typical, OF_RESPONSES, SAMPLES)).astype(int) + 1, CUT).tolist()
    passes = np.random.default_rng([0, int(prompt), 1]).random() >= filtered
    responses = []
    for score, length in zip([0.0, float(passes)] * (SAMPLES // 2), lengths):
        tokens = {"observation_tokens": np.zeros(PROMPT + length, np.int32), "rollout_log_probs": None}
        judged = {"prompt": prompt, "label": "", "reward": score, "scores": score}
        responses.append({**judged, **tokens, "action_ranges": [(PROMPT, PROMPT + length)]})
    return lengths, responses


class Prompts:
    """An endless loader of numbers."""

    def __iter__(self) -> Iterator[Any]:
        return (([""], [str(number)], [""], [None]) for number in count())

    def state_dict(self) -> dict[str, Any]:
        """Return no state."""
        return {}


def run_steps(make_fleet: Callable[[], SimulatedFleet], batch: int, steps: int, ahead: bool) -> list[tuple[int, float]]:
    """Return the prompts used and the simulated seconds of the real generator's steps; ``ahead``: as it is."""
    flags = {
        "rollout.batch_size": batch,
        "rollout.n_samples_per_prompt": SAMPLES,
        "rollout.max_new_tokens": CUT,
        "data.max_len": CUT + 1024,
        "algo.dynamic_filtering_enable": True,
        "algo.kl.init_coef": 0,
        "reward.remote_url": "unused.py",
        "vllm.num_engines": 1,
    }
    strategy, fleet = SimpleNamespace(args=parse_openrlhf_arguments(flags)), cast("Any", make_fleet())
    context: Any = SimpleNamespace(meds=MedsSettings(run_dir="unused"), first_step=0)
    theirs = SamplesGenerator(strategy, Prompts(), None, None, [])
    generator: Any = RolloutGenerator(theirs, fleet, context, sync_weights=None)
    if not ahead:
        generator._pass_rate = None
    found = []
    for _ in range(steps):
        generator._fleet = fleet = make_fleet()
        before = generator._consumed
        generator.generate()
        found.append((generator._consumed - before, fleet.now))
    return found


def measure(make_fleet: Callable[[], SimulatedFleet], batch: int, rounds: int) -> tuple[float, float, float]:
    """Return the median seconds of a case: as it is, ideal, and before."""
    (first, _), *measured = run_steps(make_fleet, batch, rounds + 1, True)  # the first does not know the pass rate
    ideal = []
    for used, _ in measured:
        fleet = make_fleet()
        left = len([fleet.generate(prompt=str(first + number)) for number in range(used)])
        while left:
            left -= len(fleet.wait([]))
        ideal.append(fleet.now)
        first += used
    before = run_steps(make_fleet, batch, rounds, False)
    return median(seconds for _, seconds in measured), median(ideal), median(seconds for _, seconds in before)


def main(command_line: list[str] | None = None) -> None:
    """Print the table."""
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument("--sequences", type=int, default=SEQUENCES, help="that an engine generates at a time")
    given = parser.parse_args(command_line)
    logging.disable(logging.INFO)
    print("| engines | filtered | seconds | ideal | seconds / ideal | before |\n|---|---|---|---|---|---|")
    for engines, filtered in product(*CASES):
        make_fleet = partial(SimulatedFleet, engines, given.sequences, partial(answer, filtered=filtered))
        seconds, ideal, before = measure(make_fleet, 16 if given.quick else 512, given.rounds)
        cells = f"{engines} | {filtered:.0%} | {seconds:.1f} | {ideal:.1f} | {seconds / ideal:.2f} | {before:.1f}"
        print(f"| {cells} |", flush=True)


if __name__ == "__main__":
    main()
