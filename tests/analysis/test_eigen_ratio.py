"""Eigen ratios of runs: as logged, and calculated anew from the memory's rows."""

from pathlib import Path

import numpy as np
import pytest

from analysis import eigen_ratio
from analysis.eigen_ratio import METRICS, largest_differences, main, recomputed_curves, table_of
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.runs.metrics import Curves, logged_curves
from meds_openrlhf.tracking.step_log import StepLog
from tests.analysis.runs import LAYERS, Rollout, write_run

CONFIG = "meds:\n  run_dir: {run}\n  features:\n    layers: all\n"


@pytest.fixture(autouse=True)
def _window_of_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigen_ratio, "WINDOW", 2)


def unit(*places: int) -> list[float]:
    return [float(layer in places) for layer in range(LAYERS)]


# Step 1 varies along one direction, step 2 along two alike; in step 3 nothing is stored; step 4 along one again.
STEPS = [
    [Rollout("p", "1", logits=unit(0)), Rollout("p", "1", logits=unit())],
    [Rollout("p", "1", logits=[-x for x in unit(0)]), Rollout("p", "1", logits=unit(0)),
     Rollout("p", "1", logits=[-x for x in unit(1)]), Rollout("p", "1", logits=unit(1))],
    [Rollout("p", "1", correct=True)],
    [Rollout("p", "1", logits=unit(2)), Rollout("p", "1", logits=unit())],
]  # fmt: skip


def written(root: Path, logged: list[dict[str, float]], *, offset: int = 0) -> Path:
    run = write_run(root, STEPS, offset=offset)
    RunPaths(run).config.write_text(CONFIG.format(run=run))
    log = StepLog(RunPaths(run).metrics)
    for step, metrics in enumerate(logged, start=1):
        log.append(step, metrics)
    return run


def values(curves: Curves, metric: str) -> dict[int, float]:
    return next(curve.to_dict() for (_, name), curve in curves.items() if name == metric)


@pytest.mark.parametrize("offset", [0, 7])
def test_ratios_are_those_of_the_rows(tmp_path: Path, offset: int) -> None:
    curves = recomputed_curves(written(tmp_path, [{}], offset=offset), "run")
    assert values(curves, "meds/eigen_ratio_step") == pytest.approx({1: 1.0, 2: 0.5, 4: 1.0})
    rows = np.array([one.logits for step in STEPS for one in step if one.logits is not None])
    for step, upto in {1: 2, 2: 6, 4: 8}.items():
        eigenvalues = np.linalg.eigvalsh(np.cov(rows[:upto].T))
        expected = eigenvalues[-1] / eigenvalues.sum()
        assert values(curves, "meds/eigen_ratio_all")[step] == pytest.approx(expected, abs=1e-12)
    # A window of two steps: at step 4 it holds the empty step 3 and step 4.
    assert values(curves, "meds/eigen_ratio_window")[2] == values(curves, "meds/eigen_ratio_all")[2]
    assert values(curves, "meds/eigen_ratio_window")[4] == pytest.approx(1.0)


def test_the_runs_own_layers_count(tmp_path: Path) -> None:
    """Only the last half of the layers: steps 1 and 2 do not vary at all there, step 4 neither."""
    run = written(tmp_path, [{}])
    RunPaths(run).config.write_text(CONFIG.format(run=run).replace("layers: all", "layers: last-half"))
    assert recomputed_curves(run, "run") == {}


def test_differences_are_taken_where_both_have_a_value(tmp_path: Path) -> None:
    logged = [{"meds/eigen_ratio_step": 1.0}, {"meds/eigen_ratio_step": 0.75}, {"other": 3.0}]
    run = written(tmp_path, logged)
    curves = logged_curves([run], [*METRICS.values()], "none")
    assert values(curves, "meds/eigen_ratio_step") == {1: 1.0, 2: 0.75}
    recomputed = recomputed_curves(run, run.name)
    assert largest_differences(curves, recomputed) == pytest.approx({"meds/eigen_ratio_step": 0.25})


def test_the_late_mean_is_of_the_last_quarter(tmp_path: Path) -> None:
    run = written(tmp_path / "one", [{"meds/eigen_ratio_all": step / 10} for step in range(1, 9)])
    curves = logged_curves([run], ["meds/eigen_ratio_all"], "none")
    assert table_of(curves).iloc[0].tolist() == ["one", "all", 8, "0.1000", "0.1000", "0.8000", "0.7500"]


def test_a_run_without_eigen_ratios_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == main([str(written(tmp_path, [{"reward": 1.0}]))]) == 2
    missing, plain = capsys.readouterr().err.splitlines()
    assert missing.endswith("nowhere: does not exist. Name the folder of a run that has trained.")
    assert "logged no eigen ratio. A baseline needs a memory of layer logits too" in plain
