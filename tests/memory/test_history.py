"""The rows of a shard in RAM, and clusterings that arrive late; test_stored.py has the totals."""

import numpy as np
import pytest

from meds_openrlhf.memory.history import History


def add(history: History, prompt: str, count: int) -> None:
    """A visit of ``count`` rows."""
    history.add([((prompt, False), count)], np.zeros((count, 1)))


@pytest.mark.parametrize("clustered_since", [True, False])
def test_a_clustering_of_fewer_rows_than_there_are_now_is_dropped(clustered_since: bool) -> None:
    """Selected, then rows came, and were clustered or not; the older clustering arrives after that."""
    history = History(1)
    add(history, "a", 2)
    add(history, "b", 2)
    groups = history.find([("a", False), ("b", False)])
    early = history.select(groups)
    add(history, "a", 1)
    if clustered_since:
        history.set_labels(history.select(groups[:1]), np.array([0, 0, 1], np.int32))
    history.set_labels(early, np.array([-1, -1, 0, 0], np.int32))
    assert list(history.stale) == ([] if clustered_since else groups[:1])
    assert history.labels.tolist() == ([0, 0, 0, 0, 1] if clustered_since else [-2, -2, 0, 0, -2])
    assert history.clusters == (3 if clustered_since else 1)
