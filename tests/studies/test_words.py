"""A setting as it is typed in the commands of a study."""

import pytest

from meds_openrlhf.config.loader import parse_overrides
from studies.study import as_word


@pytest.mark.parametrize(
    "value",
    [*("a b", "1", "true", "null", "", "#### ", "a: b", "- a", '"q"', "it's"), 3, 1e-6, 0.28, True, None,
     [0.2, 0.28], [1], ["a", "b"], ["x" * 100, "y"]],
)  # fmt: skip
def test_a_value_as_a_word_is_read_back(value: object) -> None:
    assert parse_overrides([f"--a={as_word(value)}"]) == {"a": value}
