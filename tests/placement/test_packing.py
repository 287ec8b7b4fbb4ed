"""Blocks onto nodes: what is found is possible; for sizes that divide each other, what is not found is impossible."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.placement.plan import Demand, pack


def test_a_block_stays_on_one_node_and_small_ones_fill_up() -> None:
    assert pack([8, 8], [Demand(1, 8), Demand(8, 1)]) == [[1, 0], [0, 8]]
    assert pack([4, 8], [Demand(1, 8)]) == [[0, 1]]
    assert pack([4, 4], [Demand(1, 8)]) is None
    assert pack([7, 8], [Demand(4, 2)]) == [[0, 4]]
    assert pack([8, 3, 8], [Demand(3, 1)]) == [[0, 3, 0]]  # the fullest that has room
    assert pack([8, 8, 8], [Demand(2, 8), Demand(4, 1)]) == [[1, 1, 0], [0, 0, 4]]


def demands(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[list[Demand]]:
    return st.lists(st.builds(Demand, count=st.integers(1, 4), size=sizes), max_size=3)


rooms = st.lists(st.integers(0, 8), min_size=1, max_size=4)


@given(room=rooms, wanted=demands(st.sampled_from([1, 2, 4])))
def test_sizes_that_divide_each_other_are_packed_whenever_they_fit(room: list[int], wanted: list[Demand]) -> None:
    assert (pack(room, wanted) is not None) == _possible(room, wanted)


@given(room=rooms, wanted=demands(st.integers(1, 5)))
def test_no_block_is_lost_and_no_node_is_overfull(room: list[int], wanted: list[Demand]) -> None:
    packed = pack(room, wanted)
    if packed is not None:
        for blocks, demand in zip(packed, wanted, strict=True):
            assert sum(blocks) == demand.count
            assert min(blocks) >= 0
        for index, free in enumerate(room):
            assert sum(blocks[index] * demand.size for blocks, demand in zip(packed, wanted, strict=True)) <= free


def _possible(room: list[int], wanted: list[Demand]) -> bool:
    """By trying all ways."""
    if not wanted:
        return True
    first, rest = wanted[0], wanted[1:]
    for blocks in product(*(range(free // first.size + 1) for free in room)):
        if sum(blocks) == first.count:
            left = [free - count * first.size for free, count in zip(room, blocks, strict=True)]
            if _possible(left, rest):
                return True
    return False
