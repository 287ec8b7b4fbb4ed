"""The memory's benchmark at a minuscule size: its report is whole, and both sides find the same labels."""

import numpy as np
import pytest

from benchmarks import memory as benchmark


def test_the_reference_takes_a_majority_of_three_and_the_smallest_label_of_a_tie() -> None:
    angles = np.array([0.0, 0.1, 0.2, 1.0, 1.1, 1.2])
    stored = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    new = np.array([[np.cos(0.05), np.sin(0.05)], [np.cos(1.15), np.sin(1.15)]])
    labels = np.array([[4, 4, -1, 3, 2, 5]], dtype=np.int32)
    found, clear = benchmark.reference_votes(new[None], stored[None], labels)
    assert (found.tolist(), clear.tolist()) == ([4, 2], [True, False])


def test_reports_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(["--quick", "--rounds=1", "--parts=step,clustering,snapshot,growth"])
    report = capsys.readouterr().out
    rows = [line.strip("| ").split(" | ") for line in report.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[1:]] == [
        "step, 16 stored",
        "clustering, 16 stored, paper",
        "clustering, 16 stored, robust alone",
        "clustering, 16 stored, reference alone",
        "snapshot, 32 prompts of 16 rows",
        "observe, 128 prompts of 8 rows against 64",
        "observe and recluster, 128 prompts of 8 rows against 64",
    ]
    assert "labels equal the reference's on 64 of the 64 rows" in report
    assert "bytes per row" in report


def test_reports_the_cpu_time_of_several_shards(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(["--scale", "--quick", "--rounds=1"])
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == ["shards", "1", "2", "4", "8"]


def test_refuses_a_part_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark.parse_arguments(["--parts", "step,growht"])
    assert "'growht' is not one of step, clustering, snapshot, restart, growth" in capsys.readouterr().err
