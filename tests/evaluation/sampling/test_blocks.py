"""Units of work and their seeds."""

from collections import Counter

from meds_openrlhf.evaluation.problems import Problem
from meds_openrlhf.evaluation.sampling.blocks import BLOCK_SAMPLES, make_blocks, sample_seed

PROBLEMS = [Problem(f"p{number}", "prompt", "1") for number in range(3)]
TOKENS = {problem.id: (number, 7) for number, problem in enumerate(PROBLEMS)}


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
