"""The prompts of a theme as a data set."""

import json
from pathlib import Path

import pytest

from meds_openrlhf.cli.main import main
from meds_openrlhf.config import ConfigError
from meds_openrlhf.report.export import export_theme
from tests.report.stored_runs import RUN, write_config, write_run
from tests.report.test_themes import kinds_of


def test_the_prompts_of_a_theme_are_written_as_in_the_data_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", [[*kinds_of(2, 3), *kinds_of(4, 7)[:2]]], truth="6")
    write_config(run, **{"data.input_template": "What is {}?"})
    out = tmp_path / "theme.jsonl"
    assert main(["report", str(run.root), "--export", "given + given = wrong", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: 2 prompts\n{run.report}\n"
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines == [{"prompt": "2*3", "answer": "6"}, {"prompt": "4*7", "answer": "6"}]
    assert export_theme(run.root, "2", out) == 1


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [[*kinds_of(2, 3), *kinds_of(4, 7)]])
    known = r"Name one of: 1 \(hence \\boxed \{ wrong \}\), 2 \(given \+ given = wrong\)\."
    with pytest.raises(ConfigError, match=f"--export=other: is not a theme of this run. {known}"):
        export_theme(run.root, "other", tmp_path / "x")
    with pytest.raises(ConfigError, match="--export=3: is not"):
        export_theme(run.root, "3", tmp_path / "x")
    with pytest.raises(ConfigError, match="has a log without right answers"):
        export_theme(run.root, "1", tmp_path / "x")
    silent = write_run(tmp_path / "silent", [[one for one in RUN[0] if one.mode is None]])
    with pytest.raises(ConfigError, match="has no themes"):
        export_theme(silent.root, "1", tmp_path / "x")
