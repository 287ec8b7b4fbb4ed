"""Clusters among the rollouts of one step."""

import numpy as np

from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.batch import sizes_in_batch
from meds_openrlhf.memory.clustering import Clustering
from meds_openrlhf.memory.rows import make_rows

AS_IT_IS = FeatureTransform("all", "none", "none")


def test_sizes_count_a_prompts_own_rows_and_noise_is_alone() -> None:
    near, far, single = [1.0, 0, 0, 0], [0, 0, 0, 9.0], [0, 50.0, 0, 0]
    wobble = [1.01, 0, 0, 0]
    rows = make_rows(
        [0, 1, 2, 3, 4, 5, 6],
        ["a", "b", "a", "a", "a", "a", "a"],
        [False] * 7,
        np.array([near, near, wobble, far, [0, 0, 0, 9.01], single, near], np.float32),
    )
    assert sizes_in_batch(rows, AS_IT_IS, Clustering()).tolist() == [3, 1, 3, 2, 2, 1, 3]


def test_no_rows() -> None:
    rows = make_rows([], [], [], np.empty((0, 4), np.float32))
    assert sizes_in_batch(rows, AS_IT_IS, Clustering()).tolist() == []
