"""A row of a benchmark's table."""

from benchmarks.table import Line


def test_a_line_says_whether_its_bounds_hold() -> None:
    times = [40.0, 10.0, 20.0]
    within = Line("step", times, "ms", [1000.0, 1000.0, 4000.0], at_most=20, at_most_ratio=0.01)
    assert str(within) == "| step | 20 (15 to 30) ms | 1,000 (1,000 to 2,500) ms | 0.01 | 0.01 x, 20 ms | met |"
    assert str(Line("step", times, "ms", [1000.0, 1000.0, 4000.0], at_most_ratio=0.009)).endswith(
        "| 0.009 x | missed |"
    )
    assert str(Line("step", times, at_most=19)).endswith("|  |  | 19 ms | missed |")
    assert str(Line("step", times, "s")).endswith(" s |  |  |  |  |")
