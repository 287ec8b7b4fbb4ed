"""Rows are refused before they can do harm."""

import numpy as np
import pytest

from meds_openrlhf.memory.rows import incoming_schema, layer_logits_of, log_schema, make_rows, prompt_key, shard_of


def test_keys_and_routing_are_the_same_everywhere() -> None:
    assert prompt_key("What is 1 + 1?") == "3b79aa0bbae7d002ee48ddc253f3f71b"
    assert [shard_of(key, 4) for key in "abcd"] == [3, 1, 3, 3]


def test_rows_hold_their_logits_and_only_the_label_may_be_null() -> None:
    logits = np.arange(6, dtype=np.float32).reshape(2, 3)
    rows = make_rows([4, 9], ["a", "b"], [False, False], logits)
    np.testing.assert_array_equal(layer_logits_of(rows.slice(1)), logits[1:])
    assert [field.name for field in incoming_schema(3) if field.nullable] == []
    assert [field.name for field in log_schema(3) if field.nullable] == ["label"]


@pytest.mark.parametrize(
    ("sample", "logits", "message"),
    [
        ([0], [[np.nan, 1.0]], "NaN or infinite"),
        ([0], [[np.inf, 1.0]], "NaN or infinite"),
        ([0, 1], [[1.0, 1.0]], "does not give each of 2 rows its layers"),
        ([3, 3], [[1.0], [2.0]], "an index repeats"),
    ],
)
def test_refused(sample: list[int], logits: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_rows(sample, ["p"] * len(sample), [False] * len(sample), np.array(logits, dtype=np.float32))
