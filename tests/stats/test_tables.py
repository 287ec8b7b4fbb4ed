"""Tables and numbers as they are left on disk."""

from pathlib import Path

import pandas as pd
import pytest

from meds_openrlhf.stats.tables import markdown, shown, write_numbers


def test_a_table_is_markdown_and_lines_up() -> None:
    table = pd.DataFrame([["meds", 7], ["a|b\n c", ""]], columns=["run", "n"])
    assert markdown(table) == "| run    |   n |\n|--------|----:|\n| meds   |   7 |\n| a\\|b c |     |"
    assert markdown(table[:1], left=2) == "| run  | n   |\n|------|-----|\n| meds | 7   |"
    assert markdown(table[:0]) == "| run |   n |\n|-----|----:|"


def test_numbers() -> None:
    assert [shown(None), shown(1.005), shown(0.5, "+.1f")] == ["", "1.00", "+0.5"]


def test_numbers_are_json_without_nan(tmp_path: Path) -> None:
    write_numbers({"é": [1, None]}, tmp_path / "n.json")
    assert (tmp_path / "n.json").read_text() == '{\n  "é": [\n    1,\n    null\n  ]\n}\n'
    with pytest.raises(ValueError, match="JSON"):
        write_numbers({"x": float("nan")}, tmp_path / "n.json")
