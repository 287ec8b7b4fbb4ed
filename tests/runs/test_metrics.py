"""Metrics as columns and in a summary, and the panels that they are drawn in."""

import math
from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.report.panels import panels_of
from meds_openrlhf.runs.metrics import history_of, logged_curves, summary_of
from meds_openrlhf.step_log import StepLog


def test_columns_have_a_value_for_each_step_or_none() -> None:
    lines = [
        {"step": 3, "kl": 0.1},
        {"step": 4, "kl": math.nan, "entropy": 1.23456789},
        {"step": 7, "text": "no number"},
    ]
    history = history_of(lines, 100)  # type: ignore[arg-type]
    columns = {"kl": [0.1, None, None], "entropy": [None, 1.23457, None]}
    assert history == {"steps": [3, 4, 7], "columns": columns, "every": 1}


def test_more_steps_than_points_are_averaged() -> None:
    lines = [{"step": step, "reward": float(step)} for step in range(1, 8)]
    lines[2] = {"step": 3}
    history = history_of(lines, 3)
    assert history == {"steps": [3, 6, 7], "columns": {"reward": [1.5, 5.0, 7.0]}, "every": 3}


def test_the_summary_is_of_the_first_and_the_last_five_steps() -> None:
    lines = [{"step": step, "rollout/reward_mean": step / 10, "kl": 0.0} for step in range(1, 11)]
    lines += [{"step": 11, "meds/eigen_ratio_step": 0.5}]
    assert summary_of(lines) == [
        ("reward, raw", 0.3, 0.85, ""),
        ("top-1 eigen ratio, step", None, 0.5, ""),
        ("KL", 0.0, 0.0, ""),
    ]


def test_a_torn_last_line_is_not_there_yet_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert StepLog(path).read() == []
    path.write_text('{"step": 1, "kl": 0}\n{"step": 2, "k')
    assert StepLog(path).read() == [{"step": 1, "kl": 0}]
    path.write_text('{"step": 1, "k\n{"step": 2}\n')
    with pytest.raises(ConfigError, match="has a line that is not JSON"):
        StepLog(path).read()
    path.write_text('{"step": 1, "kl": Infinity}\n{"step": 2, "kl": 1}\n{"step": 3, "kl": NaN}\n')
    (curve,) = logged_curves([tmp_path], ["kl"], "").values()
    assert curve.to_dict() == {2: 1.0}  # as the report shows it
    path.write_text("[1]\n")
    with pytest.raises(ConfigError, match="has a line without a step"):
        StepLog(path).read()


def test_panels_hold_what_is_there() -> None:
    steps = {
        "meds/reward_raw",
        "meds/eigen_ratio_window",
        "meds/eigen_ratio_right_step",
        "my/metric",
        "timing/generation",
    }
    panels = panels_of(steps, {"eval_aime24_pass16", "eval_aime24_pass2", "eval_num_samples", "eval_amc_length"})
    assert [(panel.group, panel.title, panel.series) for panel in panels] == [
        ("Reward", "Reward", [("meds/reward_raw", "raw")]),
        ("Reward", "pass@k on aime24", [("eval_aime24_pass2", "pass@2"), ("eval_aime24_pass16", "pass@16")]),
        (
            "Diversity",
            "Top-1 eigen ratio",
            [("meds/eigen_ratio_window", "wrong, window"), ("meds/eigen_ratio_right_step", "right, step")],
        ),
        ("Time", "Time of a step", [("timing/generation", "generation")]),
        ("All other metrics", "my/metric", [("my/metric", "my/metric")]),
        ("All other metrics", "eval_amc_length", [("eval_amc_length", "eval_amc_length")]),
    ]
    assert panels_of(set(), set()) == []


def test_of_diversity_the_step_is_on_at_first() -> None:
    names = {f"meds/eigen_ratio{side}_{kind}" for side in ("", "_right") for kind in ("step", "window", "all")}
    (panel,) = panels_of(names, set())
    assert [label for name, label in panel.series if name not in panel.off] == ["wrong, step", "right, step"]
    (panel,) = panels_of({"meds/eigen_ratio_all"}, set())
    assert panel.off == []
