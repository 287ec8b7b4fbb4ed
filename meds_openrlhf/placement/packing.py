"""Packs equal blocks of GPUs onto nodes, large blocks first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Demand:
    """``count`` blocks of ``size`` GPUs each, with a CPU for each; a block always stays on one node."""

    count: int
    size: int

    @property
    def gpus(self) -> int:
        """The total number of GPUs."""
        return self.count * self.size

    def __str__(self) -> str:
        if self.size == 1:
            return f"{self.count} GPU{'' if self.count == 1 else 's'}"
        return f"{self.count} x {self.size} GPUs on one node"


def pack(room: Sequence[int], demands: Sequence[Demand]) -> list[list[int]] | None:
    """Return how many blocks of each demand go to each node; ``room`` is in bundles per node. None if they do not fit.

    Each demand fills the roomiest nodes, and its rest goes to the tightest node that holds it. If every size divides
    the next larger one (8, 4, 1), this finds a packing whenever there is one. Other sizes, such as 6 beside 4, may be
    refused although another order would fit.
    """
    left = list(room)
    packed = [[0] * len(left) for _ in demands]
    for index in sorted(range(len(demands)), key=lambda index: -demands[index].size):
        size, missing = demands[index].size, demands[index].count
        if sum(free // size for free in left) < missing:
            return None
        while missing:
            slots = [free // size for free in left]
            enough = [node for node, count in enumerate(slots) if count >= missing]
            order = [(left[node] if enough else -slots[node], node) for node in enough or range(len(left))]
            _, node = min(order)
            placed = min(missing, slots[node])
            packed[index][node] += placed
            left[node] -= placed * size
            missing -= placed
    return packed
