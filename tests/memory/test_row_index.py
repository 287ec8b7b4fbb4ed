"""The row index against a plain dictionary of lists."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.memory.row_index import ALL, RowIndex

VISITS = st.lists(st.tuples(st.sampled_from("abcde"), st.booleans(), st.integers(1, 4)), max_size=40)


def fill(visits: list[tuple[str, bool, int]]) -> tuple[RowIndex, dict[tuple[str, bool], list[list[int]]]]:
    index, plain, rows = RowIndex(), {}, 0
    for prompt, correct, count in visits:
        index.add([prompt], [correct], 0, np.array([rows * 8]), np.array([count], np.int32))
        plain.setdefault((prompt, correct), []).append(list(range(rows, rows + count)))
        rows += count
    return index, plain


@given(VISITS, st.sampled_from([ALL, 1, 3, 6]), st.sampled_from([ALL, 1, 2]))
def test_a_selection_is_the_newest_rows_of_the_newest_visits(visits, max_rows, max_visits) -> None:  # type: ignore[no-untyped-def]
    index, plain = fill(visits)
    keys = [*plain, ("never seen", False)]
    groups = index.find([key[0] for key in keys], [key[1] for key in keys])
    selection = index.select(groups, max_rows, max_visits)
    for place, key in enumerate(keys):
        newest = [row for visit in plain.get(key, [])[-min(max_visits, 99) :] for row in visit][-min(max_rows, 999) :]
        assert selection.rows[selection.offsets[place] : selection.offsets[place + 1]].tolist() == newest
    # every visit's rows are fetched from where they are: 8 float32s a row here
    for visit, skip, start in zip(selection.visits, selection.skip, selection.starts):
        assert (index.offset.array[visit] // 8 + skip) == selection.rows[start]
    assert index.rows == sum(count for _, _, count in visits)
    assert index.prompts == len({prompt for prompt, _, _ in visits})


def test_labels_are_kept_and_totals_follow() -> None:
    index, _ = fill([("a", False, 4), ("b", False, 2), ("a", False, 2)])
    groups = index.find(["a", "b"], [False, False])
    assert index.owed.array[groups].all()
    selection = index.select(groups)
    index.set_labels(selection, np.array([0, 0, 1, 1, -1, 0, -1, -1], np.int32))
    assert (index.total_clusters, index.total_noise) == (2, 3)
    assert not index.owed.array.any()
    again = index.select(index.find(["a"], [False]))
    assert index.labels.array[again.rows].tolist() == [0, 0, 1, 1, -1, 0]
    index.set_labels(again, np.array([0, 0, 0, 0, 0, 0], np.int32))
    assert (index.total_clusters, index.total_noise) == (1, 2)


def test_labels_that_come_late_are_made_again() -> None:
    """Selected, then rows came and were clustered; the older clustering arrives after that."""
    index, _ = fill([("a", False, 2)])
    groups = index.find(["a"], [False])
    early = index.select(groups)
    index.add(["a"], [False], 0, np.array([16]), np.array([1], np.int32))
    index.set_labels(index.select(groups), np.array([0, 0, 0], np.int32))
    assert not index.owed.array[groups].any()
    index.set_labels(early, np.array([-1, -1], np.int32))
    assert index.owed.array[groups].all()


def test_what_is_owed_is_given_out_once() -> None:
    index, _ = fill([("a", False, 2), ("b", False, 2), ("a", False, 1), ("c", False, 1)])
    given = [index.next_owed(1).tolist() for _ in range(5)]
    assert given == [[0], [1], [0], [2], []]
    settled = index.find(["b"], [False])
    index.add(["b"], [False], 0, np.array([48]), np.array([1], np.int32))
    index.set_labels(index.select(settled), np.zeros(3, np.int32))
    assert index.next_owed(8).tolist() == []


def test_a_group_that_got_rows_while_it_was_clustered_stays_owed() -> None:
    index, _ = fill([("a", False, 2), ("b", False, 2)])
    groups = index.find(["a", "b"], [False, False])
    selection = index.select(groups)
    index.add(["a"], [False], 0, np.array([32]), np.array([1], np.int32))
    index.set_labels(selection, np.zeros(4, np.int32))
    assert index.owed.array[groups].tolist() == [True, False]
