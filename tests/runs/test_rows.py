"""The rollout log and the memory's logits in one table."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.memory.snapshot import ANSWERS, read_format, write_format
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.runs.log import logged_rollouts
from meds_openrlhf.runs.rows import layer_logits, wrong_rows
from meds_openrlhf.tracking.rollout_log import read_step, write_rollouts
from tests.analysis.runs import LAYERS, Rollout, write_run

STEPS = [
    [Rollout("p", "1", logits=[1.0] * LAYERS), Rollout("q", "7", correct=True), Rollout("q", None)],
    [Rollout("q", "2", logits=[2.0] * LAYERS), Rollout("p", "3", correct=True, logits=[3.0] * LAYERS, text=None)],
    [Rollout("p", "1", logits=[4.0] * LAYERS)],
]


@pytest.mark.parametrize("offset", [0, 20])
def test_rows_are_the_wrong_ones_of_the_log_that_the_memory_has(tmp_path: Path, offset: int) -> None:
    rows = wrong_rows(write_run(tmp_path, STEPS, offset=offset), ("prompt_text", "response", "answer"))
    assert list(zip(rows["step"].to_pylist(), rows["sample"].to_pylist())) == [(1, 0), (2, 0), (3, 0)]
    assert rows["prompt"].to_pylist() == ["p", "q", "p"]
    assert rows["answer"].to_pylist() == ["1", "2", "1"]
    assert rows["response"].null_count == 0
    assert set(rows["prompt_text"].to_pylist()) == {"Work out p.", "Work out q."}
    assert layer_logits(rows).tolist() == [[1.0] * LAYERS, [2.0] * LAYERS, [4.0] * LAYERS]
    assert layer_logits(rows).dtype == np.float32


def test_steps_of_the_memory_that_are_not_in_the_log_are_left_aside(tmp_path: Path) -> None:
    run = write_run(tmp_path, STEPS)
    RunPaths(run).rollouts(2).unlink()
    rows = wrong_rows(run)
    assert rows["step"].to_pylist() == [1, 3]
    assert layer_logits(rows)[:, 0].tolist() == [1.0, 4.0]


def test_a_memory_of_other_rollouts_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", STEPS)
    other = write_run(tmp_path / "other", [[replace(STEPS[0][0], prompt="another")], *STEPS[1:]])
    RunPaths(run).rollouts(1).write_bytes(RunPaths(other).rollouts(1).read_bytes())
    with pytest.raises(ConfigError, match=r"a memory of other rollouts \(step 1, sample 0\)"):
        wrong_rows(run)


def test_a_run_without_log_or_logits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        logged_rollouts(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"has no rollout log\. Train with --meds\.tracking\.rollouts all"):
        wrong_rows(tmp_path)
    run = write_run(tmp_path / "answers", STEPS)
    held = read_format(RunPaths(run).memory)
    assert held is not None
    write_format(RunPaths(run).memory, replace(held, model=ANSWERS))
    with pytest.raises(ConfigError, match="remembers final answers"):
        wrong_rows(run)
    assert len(logged_rollouts(run)) == 6


def test_rows_of_the_memory_that_their_step_has_not_logged_are_left_aside(tmp_path: Path) -> None:
    run = write_run(tmp_path, STEPS)
    logged = read_step(RunPaths(run), 2)
    assert logged is not None
    write_rollouts(RunPaths(run), logged.slice(1))
    assert layer_logits(wrong_rows(run))[:, 0].tolist() == [1.0, 4.0]
