"""Eigen ratios over steps, windows and everything, before and after a checkpoint, against numpy on the whole matrix."""

from pathlib import Path

import numpy as np
import pytest

from meds_openrlhf.features.moments import Moments
from meds_openrlhf.tracking.metrics import DiversityTracker


def ratio(steps: list[np.ndarray]) -> float:
    values = np.linalg.eigvalsh(np.cov(np.concatenate(steps).T))
    return values[-1] / values.sum()


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
        metrics = tracker.add(wrong[number], right[number], Moments.of(np.concatenate(wrong[: number + 1])))
        if number == 3:
            tracker = reloaded(tracker, tmp_path)
    assert metrics == pytest.approx(
        {
            f"meds/eigen_ratio{kind}_{span}": ratio(steps[first:])
            for kind, steps in (("", wrong), ("_right", right))
            for span, first in (("step", 6), ("window", 4), ("all", 0))
        },
        rel=1e-9,
    )


def test_what_has_no_ratio_is_left_out_and_saved_all_the_same(tmp_path: Path) -> None:
    none, two = np.empty((0, 3)), np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    tracker = DiversityTracker(window=3)
    assert tracker.add(none, none, Moments.of(none)) == {}
    metrics = reloaded(tracker, tmp_path).add(two, none, Moments.of(two))
    assert metrics["meds/eigen_ratio_window"] == 1.0
    assert not any("right" in name for name in metrics)
