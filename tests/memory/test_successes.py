"""The remembered success of prompts, by hand and by property."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.memory.rows import make_rows, shard_of
from meds_openrlhf.memory.successes import (
    Successes,
    Visit,
    count_visits,
    counts_of_shards,
    visits_from_json,
    visits_to_json,
)
from tests.memory.written import LAYERS, make_shard


def test_a_visit_counts_less_after_each_later_one() -> None:
    memory = Successes(decay=0.5)
    seen = []
    for right, responses in ((8, 8), (0, 8), (2, 4)):
        visits = memory.visits_of({"p": (right, responses)})
        memory.add(visits)
        seen.append(visits["p"].success)
    assert seen == [None, 1.0, 4 / 12]
    assert memory.visits_of({"p": (1, 1), "q": (0, 1)}) == {
        "p": Visit(1, 1, (2 + 0 + 2) / (2 + 4 + 4)), "q": Visit(0, 1, None),
    }  # fmt: skip
    assert (memory.visits, memory.visited, memory.solved) == (3, 1, 1)


def test_groups_of_one_prompt_are_one_visit() -> None:
    assert count_visits([("p", 1, 8), ("q", 0, 8), ("p", 3, 8)]) == {"p": (4, 16), "q": (0, 8)}


numbers = st.integers(1, 9).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
counts = st.dictionaries(st.text(st.characters(codec="utf-8")), numbers)


@given(steps=st.lists(counts, max_size=6), shards=st.integers(1, 4), decay=st.floats(0.01, 1))
def test_shards_remember_together_what_one_memory_does(steps: list, shards: int, decay: float) -> None:
    alone, divided = Successes(decay), [Successes(decay) for _ in range(shards)]
    for step in steps:
        visits = alone.visits_of(step)
        parts = [memory.visits_of(part) for memory, part in zip(divided, counts_of_shards(step, shards))]
        assert {prompt: visit for part in parts for prompt, visit in part.items()} == visits
        assert all(shard_of(prompt, shards) == number for number, part in enumerate(parts) for prompt in part)
        assert visits_from_json(visits_to_json(visits).encode()) == visits
        assert all(visit.success is None or 0 <= visit.success <= 1 for visit in visits.values())
        for memory, part in zip([alone, *divided], [visits, *parts]):
            memory.add(part)
    assert alone.solved == sum(memory.solved for memory in divided)
    again = Successes.from_json(alone.to_json().encode(), decay)
    assert again.to_json() == alone.to_json()
    assert [again.visits_of(step) for step in steps] == [alone.visits_of(step) for step in steps]


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"visits": 1}',
        '{"visits": -1, "prompts": {}}',
        '{"visits": 1, "prompts": {"p": [1, 8]}}',
        '{"visits": 1, "prompts": {"p": [9, 8, true]}}',
        '{"visits": 1, "prompts": {"p": [0, 0, false]}}',
        '{"visits": 1, "prompts": {"p": [Infinity, Infinity, true]}}',
        '{"visits": 1, "prompts": {"p": [NaN, 8, true]}}',
        '{"visits": 1, "prompts": {"p": ["1", 8, true]}}',
    ],
)
def test_successes_of_a_checkpoint_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the remembered successes"):
        Successes.from_json(text.encode())


@pytest.mark.parametrize("decay", [0.5, 0.9, 1.0])
def test_a_prompt_that_is_always_solved_is_remembered_as_solved(decay: float) -> None:
    memory = Successes(decay)
    found = []
    for _ in range(200):
        visits = memory.visits_of({"p": (7, 7)})
        memory.add(visits)
        found.append(visits["p"].success)
    np.testing.assert_array_equal(found[1:], 1.0)


@pytest.mark.parametrize(
    "numbers", [(9, 8), (-1, 8), (0, 0), (2.0, 8), (1, 8.0), (True, 8), (np.int64(1), 8), (1, 1 << 40), ("1", 8)]
)
def test_counts_that_cannot_be_are_refused_before_they_are_stored(tmp_path: Path, numbers: tuple) -> None:
    shard = make_shard(tmp_path)
    none = make_rows([], [], [], np.empty((0, LAYERS), np.float32))
    for prompt in ("p", "\ud800", 5):
        with pytest.raises(ValueError, match=r"counts: |surrogates not allowed"):
            shard.observe(1, none, {prompt: numbers if prompt == "p" else (1, 8)})
    assert not list(tmp_path.rglob("*.arrow"))
    assert shard.observe(1, none, {"p": (1, 8)}).visits == {"p": Visit(1, 8, None)}


def test_a_step_that_is_stored_with_other_counts_is_refused(tmp_path: Path) -> None:
    shard = make_shard(tmp_path)
    none = make_rows([], [], [], np.empty((0, LAYERS), np.float32))
    shard.observe(1, none, {"p": (1, 8)})
    for other in ({"q": (1, 8)}, {"p": (2, 8)}, {}):
        with pytest.raises(ValueError, match="step=1: is already stored with other rows"):
            shard.observe(1, none, other)
    assert shard.observe(1, none, {"p": (1, 8)}).visits == {"p": Visit(1, 8, None)}
    assert shard.observe(2, none, {"p": (0, 8)}).visits == {"p": Visit(0, 8, 1 / 8)}
    assert shard.stats().visits == 2
