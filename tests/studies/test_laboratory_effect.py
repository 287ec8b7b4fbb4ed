"""The table of what penalties make of a group's variance, from the rollouts of runs."""

from pathlib import Path

import pyarrow as pa
import pytest

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.rollout_log import ROLLOUT_SCHEMA, write_rollouts
from studies.laboratory_effect import main


def write_step(run: Path, step: int, penalties: list[float]) -> None:
    """Two prompts, each with one right response and two wrong ones that lose these penalties."""
    rows = [
        {
            **{"step": step, "sample": i, "prompt": f"key {i // 3}", "prompt_text": "", "correct": i % 3 == 0},
            **{"reward": float(i % 3 == 0), "penalty": penalties[i], "shaped_reward": (i % 3 == 0) - penalties[i]},
            **{"cluster_size": 0, "tokens": 1, "truncated": False},
        }
        for i in range(6)
    ]
    RunPaths(run).rollouts(step).parent.mkdir(parents=True, exist_ok=True)
    write_rollouts(RunPaths(run), pa.Table.from_pylist(rows, schema=ROLLOUT_SCHEMA))


def test_only_what_differs_within_a_group_in_the_last_quarter_counts(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write_step(tmp_path / "runs" / "early", step, [0, 0.1, 0.2, 0, 0.3, 0.0])
    write_step(tmp_path / "runs" / "early", 4, [0, 0.1, 0.1, 0, 0.0, 0.0])
    write_step(tmp_path / "runs" / "late", 1, [0, 0.0, 0.1, 0, 0.0, 0.1])
    (tmp_path / "runs" / "late.log").write_text("not a run")
    main([str(tmp_path / "runs"), "--out", str(tmp_path / "table.csv")])
    head, early, late = [line.split(",") for line in (tmp_path / "table.csv").read_text().splitlines()]
    assert head == ["run", "1x", "3x", "10x", "30x"]
    assert early[0] == "early"
    assert [float(effect) for effect in early[1:]] == [0.0] * 4
    assert late[0] == "late"
    expected = [0.5 * k**2 / (0.5 * k**2 + 2 / 3 * (1 + k / 2) ** 2) for k in (0.1, 0.3, 1.0, 3.0)]
    assert [float(effect) for effect in late[1:]] == pytest.approx(expected, abs=1e-6)
