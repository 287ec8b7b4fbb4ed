"""Settings of earlier versions that no longer exist, so that an old configuration gets an answer in one line."""

from __future__ import annotations

REMOVED: dict[str, str] = {
    "meds.tracking.eigen_window": "leave it out; the window of meds/eigen_ratio_window is 50 steps",
    "meds.tracking.snapshots": "leave it out; copy the run folder's memory/ to keep a snapshot elsewhere",
}
"""What to do about each removed setting, by its full name."""
