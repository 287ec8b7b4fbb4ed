"""The unit of work: some samples of a problem, independent of engine, order and restarts.

Every sample has its own seed, derived from the evaluation's seed, the problem's id and the sample's index, so the
requests are the same for any number and order of engines. Results can still differ in rare tokens: vLLM's summation
order depends on the other requests in a batch, which changes the last bits of the probabilities.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meds_openrlhf.evaluation.problems import Problem

BLOCK_SAMPLES = 16


@dataclass(frozen=True)
class Block:
    """Samples ``indices`` of one problem, with its prompt as token ids."""

    benchmark: str
    problem: Problem
    tokens: tuple[int, ...]
    indices: tuple[int, ...]


def sample_seed(seed: int, problem: str, index: int) -> int:
    """The seed of a sample: 63 bits, so that it fits into a signed 64-bit integer."""
    digest = hashlib.sha256(f"{seed}\0{index}\0{problem}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def make_blocks(
    benchmark: str, missing: Sequence[tuple[Problem, Sequence[int]]], tokens: Mapping[str, Sequence[int]]
) -> list[Block]:
    """All missing samples in blocks of up to 16. ``tokens`` are the prompts' token ids by problem id.

    The first blocks of all problems come before any second block, so that progress figures cover the whole benchmark.
    """
    rounds: dict[int, list[Block]] = {}
    for problem, indices in missing:
        for start in range(0, len(indices), BLOCK_SAMPLES):
            part = tuple(indices[start : start + BLOCK_SAMPLES])
            rounds.setdefault(start, []).append(Block(benchmark, problem, tuple(tokens[problem.id]), part))
    return [block for start in sorted(rounds) for block in rounds[start]]
