"""JSON from outside that no reader can hold."""

from pathlib import Path

import pytest

from meds_openrlhf.cli.main import main
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.data.catalog import CATALOG
from meds_openrlhf.data.sources import Source, _parsed
from meds_openrlhf.evaluation.problems import _fields

DEEP = 100_000 * "[" + 100_000 * "]"


def test_readers_name_the_line_and_the_atlas_counts_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "set.jsonl"
    file.write_text(DEEP)
    assert main(["atlas", str(file), "--out", str(tmp_path / "atlas"), "--model", "none"]) == 2
    assert "that are not JSON" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"line 7.*nested too deeply"):
        _fields(f"{file}: line 7", DEEP.encode())
    with pytest.raises(ConfigError, match=r"line 7.*nested too deeply"):
        _parsed(Source(CATALOG["math"], path=file), DEEP, 7)
