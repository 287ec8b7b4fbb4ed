"""Packs equal blocks of GPUs onto nodes, exactly: if it finds no placement, there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

# Maps missing larger blocks, by size, to (missing smallest blocks, previous state, how the last node was filled).
_Reached = dict[tuple[int, ...], tuple[int, tuple[int, ...], tuple[int, ...]]]


@dataclass(frozen=True)
class Demand:
    """``count`` blocks of ``size`` bundles each; a block always stays on one node."""

    count: int
    size: int


def pack(room: Sequence[int], demands: Sequence[Demand]) -> list[list[int]] | None:
    """Return how many blocks of each demand go to each node; ``room`` is in bundles per node. None if they do not fit.

    Places large blocks first, and each demand on as few nodes as possible. If every block size divides the next larger
    size (such as 8, 4, 1, the usual case), the position of larger blocks does not affect how many smaller blocks fit,
    so this is exact. Otherwise, if it fails, all placements are compared.
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
    """Place one demand after the other: fill the roomiest nodes, then put the rest on the tightest node."""
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
    """Maximize, node by node, the blocks of the smallest size for every number of larger blocks placed so far.

    Counts above the demand are capped at the demand, so the number of states stays small.
    """
    if sum(demand.count * demand.size for demand in demands) > sum(room):
        return None  # a quick check of the simple case
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
    """Yield the ways to fill a node: any numbers of larger blocks, and as many of the smallest as fit with them."""
    for larger in product(*(range(free // size + 1) for size in sizes[:-1])):
        left = free - sum(count * size for count, size in zip(larger, sizes))
        if left >= 0:
            yield (*larger, left // sizes[-1])


def _deal(demands: list[Demand], chosen: list[dict[int, int]]) -> list[list[int]]:
    """Distribute each node's blocks of a size to the demands of that size, one after the other."""
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
