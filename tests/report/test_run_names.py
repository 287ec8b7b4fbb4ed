"""What runs are called."""

from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.report.run_names import names_of


def test_names_of_runs_are_short_and_different() -> None:
    assert names_of([Path("/x/a"), Path("/x/b")]) == ["a", "b"]
    assert names_of([Path("/x/a"), Path("/y/a")]) == ["x/a", "y/a"]
    assert names_of([Path("/1/x/a"), Path("/2/x/a")]) == ["/1/x/a", "/2/x/a"]
    with pytest.raises(ConfigError, match="is named twice"):
        names_of([Path("/x/a"), Path("/x/a")])
