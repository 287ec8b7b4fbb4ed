"""The control: sizes that are exchanged within their group."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meds_openrlhf.shaping.shuffled import shuffled
from tests.shaping.test_weights import groups


@settings(deadline=None)
@given(groups(), st.integers(0, 9))
def test_shuffled_sizes_stay_in_their_group(drawn, seed):
    sizes, wrong, _, _ = drawn
    found = shuffled(sizes, wrong, [seed, 3])
    assert (found[~wrong] == sizes[~wrong]).all()
    for row in range(len(sizes)):
        assert sorted(found[row, wrong[row]]) == sorted(sizes[row, wrong[row]])


def test_shuffling_moves_sizes_and_depends_on_the_seed():
    sizes, rows = np.arange(24).reshape(2, 12), np.ones((2, 12), bool)
    first, again, other = (shuffled(sizes, rows, seed) for seed in ([1, 1], [1, 1], [1, 2]))
    assert (first == again).all()
    assert (first != sizes).any()
    assert (first != other).any()
