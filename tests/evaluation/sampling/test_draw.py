"""Units of work and their seeds, and the loop that keeps engines busy, driven by engines that are played."""

import random
from collections import Counter
from collections.abc import Collection, Hashable

import pytest

from meds_openrlhf.evaluation.problems import Problem
from meds_openrlhf.evaluation.samples import Sample
from meds_openrlhf.evaluation.sampling.draw import (
    BLOCK_SAMPLES,
    Block,
    EngineLostError,
    EvaluationLostError,
    draw,
    make_blocks,
    sample_seed,
)

PROBLEMS = [Problem(f"p{number}", "prompt", "1") for number in range(3)]
TOKENS = {problem.id: (number, 7) for number, problem in enumerate(PROBLEMS)}
BLOCKS = [Block("b", Problem(f"p{number}", "", ""), (1,), (0, 1)) for number in range(20)]


class PlayedFleet:
    """Finishes blocks in a random order; an engine in ``dies_after`` is lost once it has finished so many."""

    def __init__(self, engines: int, dies_after: dict[int, int] | None = None, seed: int = 0) -> None:
        self.engines = list(range(engines))
        self.started: list[tuple[int, Block]] = []
        self.most_in_flight = 0
        self._left = {engine: (dies_after or {}).get(engine, len(BLOCKS)) for engine in self.engines}
        self._random = random.Random(seed)

    def start(self, engine: int, block: Block) -> Hashable:
        self.started.append((engine, block))
        return len(self.started) - 1

    def wait(self, tickets: Collection[Hashable]) -> Hashable:
        running = Counter(self.started[ticket][0] for ticket in tickets if isinstance(ticket, int))
        self.most_in_flight = max(self.most_in_flight, *running.values())
        return self._random.choice(sorted(tickets, key=str))

    def samples(self, ticket: Hashable) -> list[Sample]:
        assert isinstance(ticket, int)
        engine, block = self.started[ticket]
        if not self._left[engine]:
            raise EngineLostError("killed")
        self._left[engine] -= 1
        return [Sample(block.problem.id, index, "", 1, False, None, False) for index in block.indices]


def drawn_by(fleet: PlayedFleet, lines: list[str] | None = None, in_flight: int = 3) -> Counter[tuple[str, int]]:
    told = lines.append if lines is not None else print
    found = [sample for _, samples in draw(fleet, BLOCKS, in_flight, told) for sample in samples]
    return Counter((sample.problem, sample.index) for sample in found)


ALL_ONCE = Counter((block.problem.id, index) for block in BLOCKS for index in block.indices)


@pytest.mark.parametrize("engines", [1, 2, 7, 40])
def test_every_block_is_drawn_once(engines: int) -> None:
    fleet = PlayedFleet(engines)
    assert drawn_by(fleet) == ALL_ONCE
    assert fleet.most_in_flight <= 3


def test_few_blocks_are_spread_evenly() -> None:
    fleet = PlayedFleet(10)
    assert drawn_by(fleet, in_flight=18) == ALL_ONCE
    assert Counter(engine for engine, _ in fleet.started) == dict.fromkeys(range(10), 2)


@pytest.mark.parametrize("seed", range(10))
def test_a_lost_engines_blocks_go_to_the_others(seed: int) -> None:
    lines: list[str] = []
    fleet = PlayedFleet(3, dies_after={0: 1, 2: 0}, seed=seed)
    assert drawn_by(fleet, lines) == ALL_ONCE
    assert sorted(line.split(" was")[0] for line in lines) == ["engine 0", "engine 2"]
    assert [line[-6:] for line in lines] == ["2 left", "1 left"]


def test_what_was_drawn_stays_when_none_is_left() -> None:
    found: list[object] = []  # keeps what comes before the error
    with pytest.raises(EvaluationLostError, match=r"engine ., the last, was lost \(killed\)"):
        found.extend(draw(PlayedFleet(2, dies_after={0: 2, 1: 3}), BLOCKS, 3, print))
    assert len(found) == 5


def test_every_missing_sample_is_in_one_block() -> None:
    missing = [(problem, list(range(start, 40))) for start, problem in enumerate(PROBLEMS)]
    blocks = make_blocks("aime24", missing, TOKENS)
    drawn = Counter((block.problem.id, index) for block in blocks for index in block.indices)
    assert drawn == Counter((problem.id, index) for problem, indices in missing for index in indices)
    assert max(len(block.indices) for block in blocks) == BLOCK_SAMPLES
    assert all(block.tokens == TOKENS[block.problem.id] and block.benchmark == "aime24" for block in blocks)


def test_all_problems_begin_before_any_goes_on() -> None:
    blocks = make_blocks("aime24", [(problem, list(range(48))) for problem in PROBLEMS], TOKENS)
    assert [block.problem.id for block in blocks] == ["p0", "p1", "p2"] * 3


def test_seeds_differ_and_stay() -> None:
    seeds = {
        sample_seed(seed, problem, index) for seed in range(3) for problem in ("1", "11", "p") for index in range(200)
    }
    assert len(seeds) == 3 * 3 * 200
    assert all(0 <= seed < 2**63 for seed in seeds)
    # Samples that are on somebody's disk were drawn with these.
    assert sample_seed(0, "aime24-1", 0) == 7394613888456361208
    assert sample_seed(0, "aime24-1", 127) == 9084923511986020020
