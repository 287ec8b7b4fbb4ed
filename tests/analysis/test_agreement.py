"""Agreement of labellings on small cases; the measures are scikit-learn's."""

import numpy as np
import pytest

from analysis.agreement import agreement, agreement_by_prompt, separate_noise


def test_pairs_are_of_one_prompt() -> None:
    labels, truth, prompts = np.array([0, 0, 1, 0, 2]), np.array([5, 5, 3, 3, 3]), np.array([7, 7, 4, 4, 9])
    table = agreement_by_prompt(labels, truth, prompts)
    assert table[["rows", "pairs", "pairwise"]].to_numpy().tolist() == [[2, 1, 0], [2, 1, 1]]
    assert agreement_by_prompt(labels[:1], truth[:1], prompts[:1]).pairs.tolist() == []


def test_noise_is_one_set_or_each_row_alone() -> None:
    labels, truth = np.array([-1, -1, 0, 0]), np.array([0, 1, 2, 2])
    assert agreement(labels, truth)["pairwise"] == 5 / 6  # the two rows of noise count as the same
    alone = agreement(separate_noise(labels), truth)
    assert list(alone.values()) == [4, 6, 1.0, 1.0, 1.0, 1.0]
    assert separate_noise(labels).tolist() == [1, 2, 0, 0]
    assert separate_noise(np.array([-1, -1])).tolist() == [0, 1]


def test_homogeneous_clusters_need_not_be_complete() -> None:
    halved = agreement(np.array([0, 0, 1, 1, 2, 2]), np.array([0, 0, 0, 0, 1, 1]))
    assert halved["homogeneity"] == pytest.approx(1.0, abs=1e-12)
    assert halved["completeness"] == pytest.approx(0.5793801642856952, abs=1e-12)  # H(1/3, 2/3) / ln 3
    assert halved["pairwise"] == 11 / 15
