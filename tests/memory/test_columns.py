"""The columns of a shard against a plain dictionary of lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.memory.columns import Columns

VISITS = st.lists(st.tuples(st.sampled_from("abcde"), st.booleans(), st.integers(1, 4)), max_size=40)


def add(columns: Columns, prompt: str, correct: bool, count: int) -> list[int]:
    """A visit of ``count`` rows whose features are their numbers; these numbers."""
    rows = list(range(len(columns), len(columns) + count))
    columns.add([prompt], [correct], np.array([count], np.int32), np.array(rows, np.float64)[:, None])
    return rows


def fill(visits: list[tuple[str, bool, int]]) -> tuple[Columns, dict[tuple[str, bool], list[list[int]]]]:
    columns, plain = Columns(1), {}
    for prompt, correct, count in visits:
        plain.setdefault((prompt, correct), []).append(add(columns, prompt, correct, count))
    return columns, plain


@given(VISITS, st.sampled_from([None, 1, 3, 6]), st.sampled_from([None, 1, 2]))
def test_a_selection_is_the_newest_rows_of_the_newest_visits(visits, max_rows, max_visits) -> None:  # type: ignore[no-untyped-def]
    columns, plain = fill(visits)
    keys = [*plain, ("never seen", False)]
    groups = columns.find([key[0] for key in keys], [key[1] for key in keys])
    selection = columns.select(groups, max_rows, max_visits)
    for place, key in enumerate(keys):
        newest = [row for visit in plain.get(key, [])[-(max_visits or 99) :] for row in visit][-(max_rows or 999) :]
        assert selection.rows[selection.offsets[place] : selection.offsets[place + 1]].tolist() == newest
    assert columns.features[:, 0].tolist() == list(range(sum(count for _, _, count in visits)))
    assert len(columns) == len(columns.labels) == len(columns.features)
    assert columns.prompts == len({prompt for prompt, _, _ in visits})
    for correct in (False, True):
        assert columns.keys(correct) == [prompt for prompt, right in plain if right == correct]


def test_labels_are_kept_and_totals_follow() -> None:
    columns, _ = fill([("a", False, 4), ("b", False, 2), ("a", False, 2)])
    groups = columns.find(["a", "b"], [False, False])
    assert columns.owed.array[groups].all()
    columns.set_labels(columns.select(groups), np.array([0, 0, 1, 1, -1, 0, -1, -1], np.int32))
    assert (columns.total_clusters, columns.total_noise) == (2, 3)
    assert not columns.owed.array.any()
    again = columns.select(columns.find(["a"], [False]))
    assert columns.labels[again.rows].tolist() == [0, 0, 1, 1, -1, 0]
    columns.set_labels(again, np.array([0, 0, 0, 0, 0, 0], np.int32))
    assert (columns.total_clusters, columns.total_noise) == (1, 2)


@pytest.mark.parametrize("clustered_since", [True, False])
def test_a_clustering_of_fewer_rows_than_there_are_now_is_dropped(clustered_since: bool) -> None:
    """Selected, then rows came, and were clustered or not; the older clustering arrives after that."""
    columns, _ = fill([("a", False, 2), ("b", False, 2)])
    groups = columns.find(["a", "b"], [False, False])
    early = columns.select(groups)
    add(columns, "a", False, 1)
    if clustered_since:
        columns.set_labels(columns.select(groups[:1]), np.array([0, 0, 1], np.int32))
    columns.set_labels(early, np.array([-1, -1, 0, 0], np.int32))
    assert columns.owed.array[groups].tolist() == [not clustered_since, False]
    assert columns.labels.tolist() == ([0, 0, 0, 0, 1] if clustered_since else [-2, -2, 0, 0, -2])
    assert columns.total_clusters == (3 if clustered_since else 1)


def test_what_is_owed_is_given_out_once() -> None:
    columns, _ = fill([("a", False, 2), ("b", False, 2), ("a", False, 1), ("c", False, 1)])
    given = [columns.next_owed(1).tolist() for _ in range(5)]
    assert given == [[0], [1], [0], [2], []]
    settled = columns.find(["b"], [False])
    add(columns, "b", False, 1)
    columns.set_labels(columns.select(settled), np.zeros(3, np.int32))
    assert columns.next_owed(8).tolist() == []
