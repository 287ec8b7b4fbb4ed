"""The unit of work: some samples of one problem. Which engine draws them, when, and after how many restarts: no matter.

Every sample has a seed of its own, made from the evaluation's seed, the problem's id and the sample's index. So the
same samples are asked for with one engine or with 32, in any order. vLLM adds numbers up in another order when other
requests share a batch, so a token may still turn out differently on the edge of two: the seeds are fixed, the last bit
of a probability is not.
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
    """The seed of one sample: 63 bits, so that a signed 64-bit integer holds it."""
    digest = hashlib.sha256(f"{seed}\0{index}\0{problem}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def make_blocks(
    benchmark: str, missing: Sequence[tuple[Problem, Sequence[int]]], tokens: Mapping[str, Sequence[int]]
) -> list[Block]:
    """All missing samples in blocks of up to 16. ``tokens`` are the prompts' by problem id.

    All problems' first blocks come before any second one: what is seen so far is then seen of the whole benchmark.
    """
    rounds: dict[int, list[Block]] = {}
    for problem, indices in missing:
        for start in range(0, len(indices), BLOCK_SAMPLES):
            part = tuple(indices[start : start + BLOCK_SAMPLES])
            rounds.setdefault(start, []).append(Block(benchmark, problem, tuple(tokens[problem.id]), part))
    return [block for start in sorted(rounds) for block in rounds[start]]
