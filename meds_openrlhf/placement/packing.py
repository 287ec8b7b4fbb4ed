"""Equal blocks of GPUs onto nodes, exactly: where this finds no place for them, there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

# Larger blocks still missing, by size, to: smallest ones still missing, the state before, and how its node was filled.
_Reached = dict[tuple[int, ...], tuple[int, tuple[int, ...], tuple[int, ...]]]


@dataclass(frozen=True)
class Demand:
    """``count`` blocks of ``size`` bundles each; a block always stays on one node."""

    count: int
    size: int


def pack(room: Sequence[int], demands: Sequence[Demand]) -> list[list[int]] | None:
    """How many blocks of each demand go to each node with ``room`` for so many bundles; None where they do not fit.

    Large blocks first, each demand on as few nodes as it can. Where every block size divides the next larger one (8, 4,
    1, as nearly always) it does not matter where the larger ones go, since as many smaller blocks fit afterwards: that
    way decides. Otherwise, where it fails, all ways are compared.
    """
    order = sorted(range(len(demands)), key=lambda index: -demands[index].size)
    sorted_demands = [demands[index] for index in order]
    packed = _in_turn(room, sorted_demands)
    if packed is None and not _each_divides_the_one_before(sorted_demands):
        packed = _best_of_all(room, sorted_demands)
    if packed is None:
        return None
    return [blocks for _, blocks in sorted(zip(order, packed))]


def _each_divides_the_one_before(demands: list[Demand]) -> bool:
    return all(larger.size % smaller.size == 0 for larger, smaller in pairwise(demands))


def _in_turn(room: Sequence[int], demands: list[Demand]) -> list[list[int]] | None:
    """One demand after the other: the roomiest nodes as long as they are filled, then the tightest for the rest."""
    left, packed = list(room), []
    for demand in demands:
        slots = [free // demand.size for free in left]
        if sum(slots) < demand.count:
            return None
        blocks = _tight(slots, left, demand.count)
        left = [free - count * demand.size for free, count in zip(left, blocks)]
        packed.append(blocks)
    return packed


def _tight(slots: list[int], room: list[int], count: int) -> list[int]:
    blocks = [0] * len(slots)
    while count:
        free = [index for index in range(len(slots)) if slots[index] > blocks[index]]
        enough = [index for index in free if slots[index] >= count]
        best = (
            min(enough, key=lambda index: (room[index], index)) if enough else max(free, key=lambda i: (slots[i], -i))
        )
        blocks[best] = min(count, slots[best])
        count -= blocks[best]
    return blocks


def _best_of_all(room: Sequence[int], demands: list[Demand]) -> list[list[int]] | None:
    """Node by node, for every number of larger blocks placed so far the most blocks of the smallest size beside them.

    More blocks than are wanted count as those that are wanted, so the numbers stay small.
    """
    if sum(demand.count * demand.size for demand in demands) > sum(room):
        return None  # the plain case, told at once
    sizes = sorted({demand.size for demand in demands}, reverse=True)
    wanted = tuple(sum(demand.count for demand in demands if demand.size == size) for size in sizes)
    reached: list[_Reached] = [{wanted[:-1]: (wanted[-1], (), ())}]
    for free in room:
        fills = list(_fills(free, sizes))
        following: _Reached = {}
        for missing, (smallest, _, _) in reached[-1].items():
            for fill in fills:
                rest = tuple(max(0, count - placed) for count, placed in zip(missing, fill))
                left = max(0, smallest - fill[-1])
                if rest not in following or left < following[rest][0]:
                    following[rest] = (left, missing, fill)
        reached.append(following)
    state = (0,) * (len(sizes) - 1)
    if reached[-1].get(state, (1, (), ()))[0]:
        return None
    chosen = []
    for step in reversed(reached[1:]):
        _, state, fill = step[state]
        chosen.append(dict(zip(sizes, fill)))
    return _deal(demands, chosen[::-1])


def _fills(free: int, sizes: list[int]) -> Iterator[tuple[int, ...]]:
    """The ways to fill a node: any numbers of the larger blocks, and as many of the smallest as fit beside them."""
    for larger in product(*(range(free // size + 1) for size in sizes[:-1])):
        left = free - sum(count * size for count, size in zip(larger, sizes))
        if left >= 0:
            yield (*larger, left // sizes[-1])


def _deal(demands: list[Demand], chosen: list[dict[int, int]]) -> list[list[int]]:
    """The blocks that every node has for a size, to the demands of that size, one after the other."""
    packed = []
    for demand in demands:
        missing, blocks = demand.count, []
        for fill in chosen:
            taken = min(missing, fill[demand.size])
            fill[demand.size] -= taken
            missing -= taken
            blocks.append(taken)
        packed.append(blocks)
    return packed
