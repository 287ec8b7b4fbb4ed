"""How themes made in several ways agree with the known mistakes."""

import json
from pathlib import Path

import pytest

from analysis.known_themes import main
from tests.analysis.arithmetic_runs import write_arithmetic_run
from tests.report.stored_runs import NOBODY, Rollout, write_run


def test_ways_are_compared_between_both_trivial_ways_and_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [write_arithmetic_run(tmp_path / "a"), write_arithmetic_run(tmp_path / "b", shuffled=True)]
    numbers = tmp_path / "numbers.json"
    assert main([*map(str, runs), "--json", str(numbers)]) == 0
    pure, mixed = json.loads(numbers.read_text())["adjusted_rand"].values()
    assert pure["baseline: one theme for all clusters"] == 0
    assert 0 < pure["baseline: one theme per cluster"] < 1
    assert pure["the clusters' most frequent mistake"] == 1  # each cluster is of one mistake
    assert mixed["the clusters' most frequent mistake"] < 0.9
    assert pure["where responses depart (the default)"] > pure["text of the responses"]
    assert capsys.readouterr().out.startswith("| themes by ")
    run = write_run(tmp_path / "short", [[Rollout("1+2", NOBODY, "4", text="4")]])
    assert main([str(run.root)]) == 2
    assert "RUN=" in capsys.readouterr().err
