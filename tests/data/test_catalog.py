"""Which sets a command line asks for."""

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.data.catalog import CATALOG, find_sets


def test_no_name_asks_for_those_of_the_paper() -> None:
    names = [each.name for each in find_sets([], [])]
    assert names == ["dapo-math-17k", "math-3to5", "aime24", "amc23", "math500", "minerva", "olympiadbench"]
    assert all(CATALOG[name].paper for name in names)
    given = ["math", "aime24", "dapo-math-17k"]  # names keep their order
    assert [each.name for each in find_sets([*given, "math"], ["aime24"])] == given
    (own,) = find_sets(["my-problems"], ["my-problems"])
    assert (own.kind, own.hub, own.levels) == ("training", None, ())


@pytest.mark.parametrize(
    ("names", "files", "message"),
    [
        (["aime2"], [], "SET=aime2: is not a known set. Did you mean aime24[?] .*--from aime2=FILE"),
        (["xyzzy"], [], "SET=xyzzy: is not a known set. Choose one of dapo-math-17k, math-3to5, math, "),
        (["math"], ["amc23"], "--from=amc23: is not among the sets to prepare .math.. Add it as a SET"),
        ([], ["mine"], "--from=mine: is not among the sets to prepare"),
    ],
)
def test_what_does_not_fit_is_refused(names: list[str], files: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_sets(names, files)
