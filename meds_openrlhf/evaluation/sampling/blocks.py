"""What engines are given: blocks of samples. Knows neither Ray nor vLLM.

The unit of work is a block: some samples of a problem, independent of engine, order and restarts. Every sample has its
own seed, derived from the evaluation's seed, the problem's id and the sample's index, so the requests are the same for
any number and order of engines. Results can still differ in rare tokens: vLLM's summation order depends on the other
requests in a batch, which changes the last bits of the probabilities.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meds_openrlhf.evaluation.problems import Problem
from meds_openrlhf.evaluation.settings import Settings

BLOCK_SAMPLES = 16
# Sequences in vLLM's running batch, on a GPU and on a CPU.
SEQUENCES, SEQUENCES_ON_CPU = 256, 128


@dataclass(frozen=True)
class EngineSettings:
    """The model that an engine loads, and how it is sampled. ``max_model_len`` is in tokens."""

    model: str
    revision: str | None  # of a model on the hub
    tensor_parallel: int
    max_model_len: int
    on_cpu: bool
    sampling: Settings
    trust_remote_code: bool = False

    @property
    def sequences(self) -> int:
        """The number of sequences in vLLM's running batch."""
        return SEQUENCES_ON_CPU if self.on_cpu else SEQUENCES

    @property
    def in_flight(self) -> int:
        """The number of blocks that keep the engine busy: a full batch, and two more in the queue."""
        return self.sequences // BLOCK_SAMPLES + 2


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
    benchmark: str, missing: Sequence[tuple[Problem, Sequence[int]]], tokens: Mapping[str, tuple[int, ...]]
) -> list[Block]:
    """All missing samples in blocks of up to 16. ``tokens`` are the prompts' token ids by problem id.

    The first blocks of all problems come before any second block, so that progress figures cover the whole benchmark.
    """
    longest = max((len(indices) for _, indices in missing), default=0)
    return [
        Block(benchmark, problem, tokens[problem.id], tuple(indices[start : start + BLOCK_SAMPLES]))
        for start in range(0, longest, BLOCK_SAMPLES)
        for problem, indices in missing
        if start < len(indices)
    ]
