"""JSON from outside that no reader can hold."""

import json
from pathlib import Path

import pytest

from meds_openrlhf.cli.main import main
from meds_openrlhf.json_text import parse_json


def test_what_is_nested_too_deeply_is_no_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "set.jsonl"
    file.write_text(100_000 * "[" + 100_000 * "]")
    assert main(["atlas", str(file), "--out", str(tmp_path / "atlas"), "--model", "none"]) == 2
    assert "without a JSON object" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["9" * 41, "9" * 5000, '{"a": [-' + "1" * 401 + "]}", "[" * 100_000])
def test_what_python_cannot_hold_is_an_error_of_json(text: str) -> None:
    with pytest.raises(json.JSONDecodeError, match=r"an integer of [0-9]+ digits|nested too deeply"):
        parse_json(text)


def test_numbers_are_read_and_may_be_read_otherwise() -> None:
    assert parse_json(f'[{"9" * 40}, 1.5, "{"9" * 41}"]') == [int("9" * 40), 1.5, "9" * 41]
    assert parse_json("9" * 5000, parse_int=str) == "9" * 5000
