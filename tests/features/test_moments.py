"""Running moments and eigen ratios over steps against numpy on the whole matrix, in any order of merging."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.features.moments import DiversityTracker, Moments, merge_moments


def ratio(steps: list[np.ndarray]) -> float:
    values = np.linalg.eigvalsh(np.cov(np.concatenate(steps).T))
    return values[-1] / values.sum()


@given(st.integers(0, 10**6), st.lists(st.integers(0, 9), min_size=1, max_size=6), st.permutations(range(6)))
def test_merging_equals_the_whole_matrix(seed: int, sizes: list[int], order: list[int]) -> None:
    generator = np.random.default_rng(seed)
    pieces = [generator.normal(loc=3.0, size=(size, 4)) for size in sizes]
    merged = Moments.of(np.empty((0, 4)))
    for index in order:
        if index < len(pieces):
            merged = merged.merge(Moments.of(pieces[index]))
    whole = np.concatenate(pieces)
    assert merged.count == len(whole)
    if len(whole) >= 2:
        expected = np.cov(whole.T) * (len(whole) - 1)
        np.testing.assert_allclose(merged.scatter, expected, rtol=1e-9, atol=1e-9)
        assert merged.eigen_ratio() == pytest.approx(ratio(pieces), rel=1e-9)


def test_the_ratio_is_the_share_of_the_widest_direction() -> None:
    assert Moments.of(np.concatenate([np.eye(4), -np.eye(4)])).eigen_ratio() == pytest.approx(0.25)  # round
    different = np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])  # variances 4 and 1
    assert Moments.of(different).eigen_ratio() == pytest.approx(0.8)


def test_the_mean_far_from_zero_costs_no_digits() -> None:
    """Logits have large means; the covariance of a thousand merged parts is still that of the whole."""
    vectors = np.random.default_rng(0).normal(size=(4000, 14)) * np.arange(1, 15) + 1e4
    parts = [Moments.of(part) for part in np.array_split(vectors, 1000)]
    assert merge_moments(parts).eigen_ratio() == pytest.approx(ratio([vectors]), rel=1e-9)


def test_no_ratio_without_variation() -> None:
    same = np.tile([0.1, 0.2, 0.3], (7, 1))  # whose mean is not quite 0.1, 0.2, 0.3
    for vectors in (np.ones((1, 3)), np.ones((5, 3)), same, np.zeros((3, 2))):
        assert Moments.of(vectors).eigen_ratio() is None
        assert Moments.of(vectors).merge(Moments.of(vectors)).eigen_ratio() is None
    nearly = 1 + 1e-8 * np.random.default_rng(0).normal(size=(50, 3))
    assert Moments.of(nearly).eigen_ratio() is not None


def reloaded(tracker: DiversityTracker, folder: Path) -> DiversityTracker:
    """A checkpoint, and the tracker of a run that resumes from it."""
    tracker.save(folder / "moments.npz")
    resumed = DiversityTracker(window=3)
    resumed.load(folder / "moments.npz")
    return resumed


def test_all_window_and_step_of_wrong_and_right_ones(tmp_path: Path) -> None:
    tracker, generator = DiversityTracker(window=3), np.random.default_rng(0)
    wrong = [generator.normal(size=(6, 3)) * [1, 2, step] for step in range(7)]
    right = [generator.normal(size=(4, 3)) for _ in range(7)]
    for number in range(7):
        stored = Moments.of(np.concatenate(wrong[: number + 1]))
        metrics = tracker.add(wrong[number], right[number], stored=stored, prompts=np.array([0, 0, 1, 1, 1, 4]))
        if number == 3:
            tracker = reloaded(tracker, tmp_path)
    within = [rows - np.concatenate([[part.mean(0)] * len(part) for part in np.split(rows, (2, 5))]) for rows in wrong]
    assert metrics == pytest.approx(
        {"meds/eigen_ratio_within_step": ratio(within[6:]), "meds/eigen_ratio_within_window": ratio(within[4:])}
        | {
            f"meds/eigen_ratio{kind}_{span}": ratio(steps[first:])
            for kind, steps in (("", wrong), ("_right", right))
            for span, first in (("step", 6), ("window", 4), ("all", 0))
        },
        rel=1e-9,
    )


def test_what_has_no_ratio_is_left_out_and_saved_all_the_same(tmp_path: Path) -> None:
    none, two = np.empty((0, 3)), np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    tracker = DiversityTracker(window=3)
    assert tracker.add(none, none, stored=Moments.of(none), prompts=np.zeros(0, int)) == {}
    metrics = reloaded(tracker, tmp_path).add(two, none, stored=Moments.of(two), prompts=np.array([0, 1]))
    assert not any("within" in name for name in metrics)  # a row of each prompt, which is its mean
    assert metrics["meds/eigen_ratio_window"] == 1.0
    assert not any("right" in name for name in metrics)
