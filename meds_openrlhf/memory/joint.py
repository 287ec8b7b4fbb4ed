"""The other way to find a new rollout's cluster: cluster stored and new rows together and look where it ended up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.memory.assignment import UNASSIGNED, sizes_of
from meds_openrlhf.memory.clustering import cluster_sets
from meds_openrlhf.memory.presets import Method


def assign_jointly(
    method: Method,
    new: NDArray[np.float64],
    new_offsets: NDArray[np.int64],
    stored: NDArray[np.float64],
    offsets: NDArray[np.int64],
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Labels and sizes (m,) of ``new`` rows, from clustering each set's stored and new rows together.

    A cluster's size counts the new rows as well. Sets with nothing stored are UNASSIGNED: a first visit only fills the
    memory.
    """
    both = offsets + new_offsets
    is_new = np.zeros(len(new) + len(stored), dtype=bool)
    for group in range(len(offsets) - 1):
        is_new[both[group + 1] - (new_offsets[group + 1] - new_offsets[group]) : both[group + 1]] = True
    together = np.empty((len(is_new), new.shape[1]))
    together[is_new], together[~is_new] = new, stored
    clustered = cluster_sets(together, both, method.clustering)
    first_visit = np.repeat(np.diff(offsets) == 0, np.diff(new_offsets))
    labels = np.where(first_visit, UNASSIGNED, clustered[is_new]).astype(np.int32)
    return labels, sizes_of(labels, new_offsets, clustered, both, method.noise)
