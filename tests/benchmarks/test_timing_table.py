"""A row of the table of times."""

import numpy as np

from benchmarks.timing_table import Line


def test_a_line_says_whether_its_bounds_hold() -> None:
    seconds, compared = np.array([0.04, 0.01, 0.02]), np.array([1.0, 1.0, 4.0])
    within = Line("step", seconds, compared, at_most_ratio=0.01, at_most_seconds=0.02)
    assert str(within) == "| step | 20.0 (15.0 to 30.0) | 1,000.0 (1,000.0 to 2,500.0) | 0.01 | 0.01 x, 20 ms | met |"
    assert str(Line("step", seconds, compared, at_most_ratio=0.009)).endswith("| 0.009 x | missed |")
    assert str(Line("step", seconds, at_most_seconds=0.019)).endswith("|  |  | 19 ms | missed |")
