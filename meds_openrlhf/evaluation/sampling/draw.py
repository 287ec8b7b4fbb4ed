"""Keep engines busy: assign blocks to engines, and reassign the blocks of a lost engine.

Depends on neither Ray nor vLLM: a `Fleet` starts blocks and reports finished blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import Protocol

from meds_openrlhf.evaluation.samples import Sample
from meds_openrlhf.evaluation.sampling.blocks import Block


class EngineLostError(RuntimeError):
    """An engine is lost, with the blocks that it had."""


class EvaluationLostError(RuntimeError):
    """No engine is left to draw samples; the samples drawn so far are on disk."""


class Fleet(Protocol):
    """Engines that can be given blocks."""

    @property
    def engines(self) -> Collection[int]:
        """The numbers of the running engines."""

    def start(self, engine: int, block: Block) -> Hashable:
        """Start a block on an engine without waiting; returns a ticket for its result."""

    def wait(self, tickets: Collection[Hashable]) -> Hashable:
        """Wait for the next of the tickets to finish and return it."""

    def samples(self, ticket: Hashable) -> list[Sample]:
        """The samples of a finished block. Raises EngineLostError if its engine is lost."""


def draw(
    fleet: Fleet, blocks: Iterable[Block], in_flight: int, tell: Callable[[str], None]
) -> Iterator[tuple[Block, list[Sample]]]:
    """Yield every block with its samples when it finishes. No engine has more than ``in_flight`` blocks at a time.

    Each block goes to the engine with the fewest blocks. The blocks of a lost engine go to the others before any new
    block; ``tell`` gets a line about it. Raises EvaluationLostError if no engine is left.
    """
    waiting, load = deque(blocks), dict.fromkeys(fleet.engines, 0)
    running: dict[Hashable, tuple[int, Block]] = {}
    while waiting or running:
        while waiting and (free := [engine for engine in load if load[engine] < in_flight]):
            engine = min(free, key=lambda number: load[number])
            block = waiting.popleft()
            running[fleet.start(engine, block)] = (engine, block)
            load[engine] += 1
        ticket = fleet.wait(running)
        engine, block = running.pop(ticket)
        try:
            samples = fleet.samples(ticket)
        except EngineLostError as loss:
            waiting.appendleft(block)
            if load.pop(engine, None) is not None and load:
                tell(f"engine {engine} was lost ({loss}); its samples go to the {len(load)} left")
            if not load:
                raise EvaluationLostError(f"engine {engine}, the last, was lost ({loss})") from loss
            continue
        if engine in load:  # a lost engine may have finished this block before
            load[engine] -= 1
        yield block, samples
