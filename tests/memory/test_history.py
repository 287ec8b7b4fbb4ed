"""The rows of a shard in RAM against a plain dictionary of lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.memory.history import History

VISITS = st.lists(st.tuples(st.sampled_from("abcde"), st.booleans(), st.integers(1, 4)), max_size=40)


def add(history: History, prompt: str, correct: bool, count: int) -> list[int]:
    """A visit of ``count`` rows whose features are their numbers; these numbers."""
    rows = list(range(len(history), len(history) + count))
    history.add([((prompt, correct), count)], np.array(rows, np.float64)[:, None])
    return rows


@given(VISITS)
def test_a_selection_is_the_rows_of_its_groups_in_their_order(visits: list[tuple[str, bool, int]]) -> None:
    history, plain = History(1), dict[tuple[str, bool], list[int]]()
    for prompt, correct, count in visits:
        plain.setdefault((prompt, correct), []).extend(add(history, prompt, correct, count))
    keys = [*plain, ("never seen", False)]
    selection = history.select(history.find(keys))
    for place, key in enumerate(keys):
        found = selection.rows[selection.offsets[place] : selection.offsets[place + 1]]
        assert found.tolist() == plain.get(key, [])
    assert history.features[:, 0].tolist() == list(range(len(history)))
    assert len(history) == len(history.labels) == sum(count for _, _, count in visits)
    assert history.prompts == len({prompt for prompt, _, _ in visits})
    assert list(history.groups) == list(plain)
    assert len(history.stale) == len(plain)


def test_labels_are_kept_and_totals_follow() -> None:
    history = History(1)
    for prompt, count in (("a", 4), ("b", 2), ("a", 2)):
        add(history, prompt, False, count)
    groups = history.find([("a", False), ("b", False)])
    add(history, "c", False, 1)
    assert list(history.stale) == [*groups, *history.find([("c", False)])]  # in the order of their rows
    history.set_labels(history.select(history.find([("c", False)])), np.array([-1], np.int32))
    assert list(history.stale) == groups
    history.set_labels(history.select(groups), np.array([0, 0, 1, 1, -1, 0, -1, -1], np.int32))
    assert (history.clusters, history.noise, len(history.stale)) == (2, 4, 0)
    again = history.select(groups[:1])
    assert history.labels[again.rows].tolist() == [0, 0, 1, 1, -1, 0]
    history.set_labels(again, np.zeros(6, np.int32))
    assert (history.clusters, history.noise) == (1, 3)


@pytest.mark.parametrize("clustered_since", [True, False])
def test_a_clustering_of_fewer_rows_than_there_are_now_is_dropped(clustered_since: bool) -> None:
    """Selected, then rows came, and were clustered or not; the older clustering arrives after that."""
    history = History(1)
    add(history, "a", False, 2)
    add(history, "b", False, 2)
    groups = history.find([("a", False), ("b", False)])
    early = history.select(groups)
    add(history, "a", False, 1)
    if clustered_since:
        history.set_labels(history.select(groups[:1]), np.array([0, 0, 1], np.int32))
    history.set_labels(early, np.array([-1, -1, 0, 0], np.int32))
    assert list(history.stale) == ([] if clustered_since else groups[:1])
    assert history.labels.tolist() == ([0, 0, 0, 0, 1] if clustered_since else [-2, -2, 0, 0, -2])
    assert history.clusters == (3 if clustered_since else 1)
