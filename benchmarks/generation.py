"""How long a step's generation takes when dynamic filtering leaves prompts out: the real generator, simulated engines.

`RolloutGenerator` sends prompts to engines that exist only in simulated time (benchmarks/simulated_engines.py: an H200
with a 7B model each) and filters what comes back. From the repository's root:

    python -m benchmarks.generation
    python -m benchmarks.generation --sequences 128

A table row holds medians of simulated seconds: of the generator as it is; `ideal`, if exactly the prompts of the batch
are started, at once; and `before`, if a prompt is replaced when it is filtered out and not earlier.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from itertools import count
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np

from meds_openrlhf.training import cpu

if not cpu.has_cuda():
    cpu.install()  # before anything of OpenRLHF's

from benchmarks.simulated_engines import PROMPT, SimulatedFleet
from benchmarks.table import make_parser
from meds_openrlhf.training.engines.rollout import PromptStream, RolloutGenerator

SAMPLES = 16
SEQUENCES = 738  # at a time in an engine, as `meds plan` says of a 7B model on an H200
MEAN, CUT = 900, 3072  # tokens of a response; log-normal, half of the variance between prompts
OF_PROMPTS, OF_RESPONSES = 0.5, 0.62  # deviations of the logarithm
ENGINES = (8, 64)
FILTERED = (0.0, 0.5, 0.8)


class Case:
    """A number of engines and the share of an endless data set's prompts that is filtered out.

    A prompt's text is its number, from which its responses and its verdict follow.
    """

    def __init__(self, engines: int, filtered: float, batch: int, sequences: int) -> None:
        self._engines, self._filtered, self._batch, self._sequences = engines, filtered, batch, sequences

    def fleet(self) -> SimulatedFleet:
        """Return idle engines."""
        return SimulatedFleet(self._engines, self._sequences, self.answer)

    def answer(self, prompt: str) -> tuple[list[int], list[dict[str, Any]]]:
        """Return lengths and responses, of which half are right, or none if the prompt is to be filtered out."""
        draws = np.random.default_rng([0, int(prompt)])
        typical = draws.normal(math.log(MEAN) - (OF_PROMPTS**2 + OF_RESPONSES**2) / 2, OF_PROMPTS)
        drawn = np.exp(draws.normal(typical, OF_RESPONSES, SAMPLES)).astype(int) + 1
        lengths = np.minimum(drawn, CUT).tolist()
        passes = np.random.default_rng([0, int(prompt), 1]).random() >= self._filtered
        responses = []
        for position, length in enumerate(lengths):
            score = float(passes and position % 2)
            tokens = {"observation_tokens": np.zeros(PROMPT + length, np.int32), "rollout_log_probs": None}
            judged = {"prompt": prompt, "label": "", "reward": score, "scores": score}
            responses.append({**judged, **tokens, "action_ranges": [(PROMPT, PROMPT + length)]})
        return lengths, responses

    def generator(self) -> RolloutGenerator:
        """Return the real generator on simulated engines."""
        args = SimpleNamespace(
            data=SimpleNamespace(max_len=CUT + 1024),
            rollout=SimpleNamespace(batch_size=self._batch, n_samples_per_prompt=SAMPLES, max_new_tokens=CUT),
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
            fleet=self.fleet(),  # type: ignore[arg-type]
            sync_weights=None,
        )
        generator._dataloader_iter = PromptStream(([""], [str(number)], [""], [None]) for number in count())
        return generator

    def steps(self, generator: RolloutGenerator, steps: int) -> Iterator[tuple[int, float]]:
        """Yield how many prompts each step used, and simulated seconds."""
        for _ in range(steps):
            fleet = self.fleet()
            generator._fleet = fleet  # type: ignore[assignment]
            _, _, used, _ = generator.generate_samples(max_len=CUT + 1024, max_new_tokens=CUT)
            yield used, fleet.now

    def ideal_seconds(self, used: range) -> float:
        """Return the seconds of a step in which exactly the prompts that it uses are started, at once."""
        fleet = self.fleet()
        left = len([fleet.generate(prompt=str(number)) for number in used])
        while left:
            left -= len(fleet.wait([]))
        return fleet.now


def measure(case: Case, rounds: int) -> tuple[float, float, float]:
    """Return the median seconds of a case: as it is, ideal, and before."""
    (first, _), *measured = case.steps(case.generator(), rounds + 1)  # the first step does not know the pass rate
    ideal = []
    for used, _ in measured:
        ideal.append(case.ideal_seconds(range(first, first + used)))
        first += used
    plain = case.generator()
    plain._pass_rate = None  # type: ignore[assignment]
    before = median(seconds for _, seconds in case.steps(plain, rounds))
    return median(seconds for _, seconds in measured), median(ideal), before


def main(command_line: list[str] | None = None) -> None:
    """Print the table."""
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument("--sequences", type=int, default=SEQUENCES, help="that an engine generates at a time")
    arguments = parser.parse_args(command_line)
    logging.disable(logging.INFO)
    print("| engines | filtered | seconds | ideal | seconds / ideal | before |\n|---|---|---|---|---|---|")
    for engines in ENGINES:
        for filtered in FILTERED:
            case = Case(engines, filtered, 16 if arguments.quick else 512, arguments.sequences)
            seconds, ideal, before = measure(case, arguments.rounds)
            print(
                f"| {engines} | {filtered:.0%} | {seconds:.1f} | {ideal:.1f} | {seconds / ideal:.2f} | {before:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
