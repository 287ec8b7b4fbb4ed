"""Eigen ratios over steps, windows and everything, before and after a checkpoint, against numpy on the whole matrix."""

from pathlib import Path

import numpy as np
import pytest

from meds_openrlhf.features.moments import Moments
from meds_openrlhf.tracking.metrics import DiversityTracker


def ratio(vectors: np.ndarray) -> float:
    values = np.linalg.eigvalsh(np.cov(vectors.T))
    return values[-1] / values.sum()


def steps(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(0)
    return [(generator.normal(size=(6, 3)) * [1, 2, step], generator.normal(size=(4, 3))) for step in range(1, count)]


def test_all_window_and_step_of_wrong_and_right_ones(tmp_path: Path) -> None:
    tracker = DiversityTracker(window=3)
    wrong, right = zip(*steps(8))
    for number in range(7):
        stored = Moments.of(np.concatenate(wrong[: number + 1]))
        metrics = tracker.add(wrong[number], right[number], stored)
        if number == 3:  # a checkpoint, and a run that goes on from it
            tracker.save(tmp_path / "moments.npz")
            tracker = DiversityTracker(window=3)
            tracker.load(tmp_path / "moments.npz")
    assert metrics["meds/eigen_ratio_step"] == pytest.approx(ratio(wrong[6]), rel=1e-9)
    assert metrics["meds/eigen_ratio_window"] == pytest.approx(ratio(np.concatenate(wrong[4:])), rel=1e-9)
    assert metrics["meds/eigen_ratio_all"] == pytest.approx(ratio(np.concatenate(wrong)), rel=1e-9)
    assert metrics["meds/eigen_ratio_right_step"] == pytest.approx(ratio(right[6]), rel=1e-9)
    assert metrics["meds/eigen_ratio_right_window"] == pytest.approx(ratio(np.concatenate(right[4:])), rel=1e-9)
    assert metrics["meds/eigen_ratio_right_all"] == pytest.approx(ratio(np.concatenate(right)), rel=1e-9)
    assert len(metrics) == 6


def test_what_has_no_ratio_is_left_out_and_saved_all_the_same(tmp_path: Path) -> None:
    tracker = DiversityTracker(window=2)
    none = np.empty((0, 3))
    assert tracker.add(none, none, Moments.of(none)) == {}
    tracker.save(tmp_path / "moments.npz")
    tracker = DiversityTracker(window=2)
    tracker.load(tmp_path / "moments.npz")
    two = np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    metrics = tracker.add(two, none, Moments.of(two))
    assert metrics["meds/eigen_ratio_window"] == 1.0
    assert not any("right" in name for name in metrics)
