"""The figure of predictions and results, from what is committed."""

import pytest

from studies.predicted import drawn, rows


def test_predictions_are_those_of_the_cells_around_a_task_and_results_have_their_intervals() -> None:
    found = {row.name: row for row in rows()}
    before, after = found["forks: weights-extras"].predicted.values()
    assert before == pytest.approx((2.4, 5.1), abs=0.05)  # docs/laboratory.md
    assert after == pytest.approx((1.3, 3.8), abs=0.05)
    assert found["forks: weights-extras"].interval == pytest.approx((-2.7, 2.0), abs=0.05)
    assert found["forks: dapo-again"].predicted == {}
    assert all(row.interval[0] < row.found < row.interval[1] for row in found.values())
    (axes,) = drawn(list(found.values())).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(found)
