"""JSON from outside that no reader can hold."""

from pathlib import Path

import pytest

from meds_openrlhf.cli.main import main


def test_what_is_nested_too_deeply_is_no_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "set.jsonl"
    file.write_text(100_000 * "[" + 100_000 * "]")
    assert main(["atlas", str(file), "--out", str(tmp_path / "atlas"), "--model", "none"]) == 2
    assert "without a JSON object" in capsys.readouterr().err
