"""Keeping engines busy: which block goes where, and what becomes of those of an engine that is lost.

Knows neither Ray nor vLLM: a `Fleet` starts blocks and says which is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import Protocol

from meds_openrlhf.evaluation.samples import Sample
from meds_openrlhf.evaluation.sampling.blocks import Block


class EngineLostError(RuntimeError):
    """One engine is gone, with the blocks that it had."""


class EvaluationLostError(RuntimeError):
    """Nothing is left that could draw samples; those that were drawn are on the disk."""


class Fleet(Protocol):
    """Engines that can be given blocks."""

    @property
    def engines(self) -> Collection[int]:
        """The numbers of those that run."""

    def start(self, engine: int, block: Block) -> Hashable:
        """Give an engine a block, without waiting; the ticket stands for its result."""

    def wait(self, tickets: Collection[Hashable]) -> Hashable:
        """The next of the tickets that is done."""

    def samples(self, ticket: Hashable) -> list[Sample]:
        """The samples of a block that is done. Raises EngineLostError where its engine is gone."""


def draw(
    fleet: Fleet, blocks: Iterable[Block], in_flight: int, tell: Callable[[str], None]
) -> Iterator[tuple[Block, list[Sample]]]:
    """Every block with its samples, as soon as it is done. No engine has more than ``in_flight`` blocks at a time.

    Blocks go to the engine that has the fewest, so that a few blocks are spread evenly too. Those of an engine that is
    lost go to the others, before any new one; ``tell`` gets a line about it. Raises EvaluationLostError when none is
    left.
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
                raise EvaluationLostError(f"engine {engine} was lost ({loss}), and none is left") from loss
            continue
        if engine in load:  # a lost one may have finished others before
            load[engine] -= 1
        yield block, samples
