"""How long a step's generation takes when dynamic filtering leaves prompts out: the real generator, simulated engines.

`RolloutGenerator` sends prompts to engines that exist only in simulated time (benchmarks/simulated_engines.py: an H200
with a 7B model each) and filters what comes back.

    python -m benchmarks.generation --json generation.json

Each case has the medians of some steps, in simulated seconds: of the generator as it is; `ideal`, if the verdict of
every prompt were known before, so that exactly the prompts of the batch are started, at once; `bound`, which no order
of work beats: all engines full until the end, or the longest response alone; and `before`, if a prompt is replaced when
it is filtered out and not earlier. `bias` compares the mean length of the responses kept with that of all, in percent.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np

from meds_openrlhf.training import cpu

if not cpu.has_cuda():
    cpu.install()  # before anything of OpenRLHF's

from benchmarks.simulated_engines import PROMPT, SimulatedFleet, step_seconds
from meds_openrlhf.training.engines.rollout import PromptStream, RolloutGenerator

SAMPLES = 16
SEQUENCES = 738  # at a time in an engine, as `meds plan` says of a 7B model on an H200
MEAN, CUT = 900, 3072  # tokens of a response; log-normal, half of the variance between prompts
OF_PROMPTS, OF_RESPONSES = 0.5, 0.62  # deviations of the logarithm
ENGINES = (8, 64)
FILTERED = (0.0, 0.5, 0.8)


Fleets = Callable[[], SimulatedFleet]


@dataclass(frozen=True)
class Case:
    """A number of engines, the share of prompts that is filtered out, and what came of it."""

    engines: int
    filtered: float
    seconds: float
    ideal: float
    bound: float
    before: float
    bias: float  # %
    thrown_away: float  # % of the tokens that were generated, of prompts beyond the batch


class Prompts:
    """An endless data set; a prompt's text is its number, from which its responses and its verdict follow."""

    def __init__(self, filtered: float, seed: int) -> None:
        self._filtered = filtered
        self._seed = seed

    def lengths(self, number: int) -> list[int]:
        """Return the lengths of a prompt's responses."""
        draws = np.random.default_rng([self._seed, number])
        typical = draws.normal(math.log(MEAN) - (OF_PROMPTS**2 + OF_RESPONSES**2) / 2, OF_PROMPTS)
        drawn = np.exp(draws.normal(typical, OF_RESPONSES, SAMPLES)).astype(int) + 1
        return list(map(int, np.minimum(drawn, CUT)))

    def passes(self, number: int) -> bool:
        """Return whether a prompt is not filtered out."""
        return bool(np.random.default_rng([self._seed, number, 1]).random() >= self._filtered)

    def answer(self, prompt: str) -> tuple[list[int], list[dict[str, Any]]]:
        """Return lengths and responses, of which half are right, or none where the prompt is to be filtered out."""
        lengths, passes = self.lengths(int(prompt)), self.passes(int(prompt))
        responses = []
        for position, length in enumerate(lengths):
            score = float(passes and position % 2)
            tokens = np.zeros(PROMPT + length, np.int32)
            common = {"observation_tokens": tokens, "action_ranges": [(PROMPT, PROMPT + length)]}
            responses.append(
                {"prompt": prompt, "label": "", "reward": score, "scores": score, "rollout_log_probs": None, **common}
            )
        return lengths, responses

    def rows(self, numbers: Iterator[int]) -> Iterator[Any]:
        """Yield rows as OpenRLHF's loader has them."""
        return (([""], [str(number)], [""], [None]) for number in numbers)


def generator_of(wanted: int, prompts: Prompts, make_fleet: Fleets, numbers: Iterator[int]) -> RolloutGenerator:
    """Return the real generator on simulated engines."""
    args = SimpleNamespace(
        data=SimpleNamespace(max_len=CUT + 1024),
        rollout=SimpleNamespace(batch_size=wanted, n_samples_per_prompt=SAMPLES, max_new_tokens=CUT),
        vllm=SimpleNamespace(enable_sleep=False),
        algo=SimpleNamespace(
            dynamic_filtering_enable=True,
            dynamic_filtering_range=(0.0, 1.0),
            advantage=SimpleNamespace(is_correction_level="off"),
        ),
    )
    generator = RolloutGenerator(
        strategy=SimpleNamespace(args=args),
        prompts_dataloader=[],
        eval_dataloader=None,
        tokenizer=None,
        fleet=make_fleet(),  # type: ignore[arg-type]
        sync_weights=None,
    )
    generator._dataloader_iter = PromptStream(prompts.rows(numbers))
    return generator


def steps_of(
    generator: RolloutGenerator, make_fleet: Fleets, steps: int
) -> Iterator[tuple[list[int], int, float, float]]:
    """Yield the prompts of each step's batch, how many were used, simulated seconds, and generated tokens."""
    for _ in range(steps):
        fleet = make_fleet()
        generator._fleet = fleet  # type: ignore[assignment]
        samples, _, used, _ = generator.generate_samples(max_len=CUT + 1024, max_new_tokens=CUT)
        yield [int(sample.prompts[0]) for sample in samples[::SAMPLES]], used, fleet.now, fleet.generated


def ideal_seconds(make_fleet: Fleets, used: list[int]) -> float:
    """Return the seconds of a step in which exactly the prompts that it uses are started, at once."""
    fleet = make_fleet()
    left = len([fleet.generate(prompt=str(number)) for number in used])
    while left:
        left -= len(fleet.wait([]))
    return fleet.now


def bound_seconds(prompts: Prompts, used: list[int], engines: int, sequences: int) -> float:
    """Return the seconds of a step whose engines are full until its end, or of its longest response alone."""
    lengths = np.array([prompts.lengths(number) for number in used], float)
    running = min(sequences, lengths.size / engines)
    # A response is half generated when seen at any time, and longer ones are seen more often.
    cached = running * (PROMPT + (lengths**2).sum() / lengths.sum() / 2)
    full = lengths.sum() / engines / running * step_seconds(running, cached)
    longest = lengths.max() * step_seconds(1, PROMPT + lengths.max() / 2)
    return float(max(full, longest))


def measure(engines: int, filtered: float, wanted: int, steps: int, sequences: int, seed: int) -> Case:
    """Simulate a case."""
    prompts = Prompts(filtered, seed)
    make_fleet = partial(SimulatedFleet, engines, sequences, prompts.answer)
    first, found, kept, ideal, bound, tokens, generated = 0, list[float](), list[int](), [], [], 0, 0.0
    generator = generator_of(wanted, prompts, make_fleet, count())
    for number, (batch, used, seconds, made) in enumerate(steps_of(generator, make_fleet, steps + 1)):
        drawn = list(range(first, first + used))
        first += used
        kept += batch
        if number == 0:  # the pass rate is not known yet
            continue
        found.append(seconds)
        ideal.append(ideal_seconds(make_fleet, drawn))
        bound.append(bound_seconds(prompts, drawn, engines, sequences))
        tokens += sum(sum(prompts.lengths(one)) for one in drawn)
        generated += made
    plain = generator_of(wanted, prompts, make_fleet, count())
    plain._pass_rate = None  # type: ignore[assignment]
    before = [seconds for *_, seconds, _ in steps_of(plain, make_fleet, steps)]
    means = [np.mean([prompts.lengths(number) for number in numbers]) for numbers in (kept, range(first))]
    return Case(
        engines, filtered, median(found), median(ideal), median(bound), median(before),
        bias=100 * float(means[0] / means[1] - 1), thrown_away=100 * (1 - tokens / generated),
    )  # fmt: skip


def table(cases: list[Case]) -> str:
    """A Markdown table."""
    lines = [
        "| engines | filtered | seconds | ideal | seconds / ideal | bound | before | bias, % | thrown away, % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        cells = [f"{case.engines}", f"{case.filtered:.0%}", f"{case.seconds:.1f}", f"{case.ideal:.1f}"]
        cells += [f"{case.seconds / case.ideal:.2f}", f"{case.bound:.1f}", f"{case.before:.1f}"]
        cells += [f"{case.bias:+.1f}", f"{case.thrown_away:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=512, help="of a batch, with 16 responses each")
    parser.add_argument("--steps", type=int, default=5, help="measured, after one from which the pass rate is known")
    parser.add_argument("--sequences", type=int, default=SEQUENCES, help="that an engine generates at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the cases here")
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    cases = []
    for engines in ENGINES:
        for filtered in FILTERED:
            cases.append(
                measure(engines, filtered, arguments.prompts, arguments.steps, arguments.sequences, arguments.seed)
            )
            print(table(cases).splitlines()[-1] if len(cases) > 1 else table(cases), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(case) for case in cases], indent=1) + "\n")


if __name__ == "__main__":
    main()
