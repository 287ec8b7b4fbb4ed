"""A step as one value: its groups, the memory's rows, and what methods see."""

import numpy as np

from tests.rollouts.tables import step_table


def test_groups_rows_and_what_methods_see() -> None:
    table = step_table(
        4, group=2, prompt=["a", "a", "b", "b"], correct=np.array([True, False, False, False]),
        row=np.arange(8, dtype=np.float32).reshape(4, 2), has_row=np.array([True, True, False, True]),
        reward=np.array([1, 0, 0.25, 0], np.float32), is_extra=np.array([False, False, True, True]),
    )  # fmt: skip
    assert table.sample.tolist() == [0, 1, 2, 3]
    assert [table.remembered(which).tolist() for which in ("wrong", "right", "both")] == [[1, 3], [0], [0, 1, 3]]
    assert table.rows(table.remembered("wrong")).to_pylist() == [
        {"sample": 1, "prompt": "a", "correct": False, "layer_logits": [2.0, 3.0]},
        {"sample": 3, "prompt": "b", "correct": False, "layer_logits": [6.0, 7.0]},
    ]
    step = table.for_methods(np.array([5, 6, 7, 8]))
    assert step.reward.tolist() == [[1, 0], [0.25, 0]]
    assert step.correct.tolist() == [[True, False], [False, False]]
    assert step.cluster_size.tolist() == [[5, 6], [7, 8]]
    assert step.has_row.tolist() == [[True, True], [False, True]]
    assert step.is_extra.tolist() == [[False, False], [True, True]]
    assert table.without_rows().row.shape == (4, 0)
    assert table.without_rows().has_row is table.has_row
