"""Eigen ratios of runs: as logged, and calculated anew from the memory's rows."""

import json
from pathlib import Path

import numpy as np
import pytest

from analysis import eigen_ratio
from analysis.eigen_ratio import METRICS, largest_differences, main, recomputed_curves, table_of
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.runs.metrics import logged_curves
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


def values(curves: list, metric: str) -> dict[int, float]:
    curve = next(one for one in curves if one.metric == metric)
    return dict(zip(curve.steps.tolist(), curve.values.tolist()))


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
    assert recomputed_curves(run, "run") == []


def test_without_a_configuration_the_papers_layers_count(tmp_path: Path) -> None:
    steps = [[Rollout("p", "1", logits=unit(6)), Rollout("p", "1", logits=unit(7)), Rollout("p", "1", logits=unit(0))]]
    curves = recomputed_curves(write_run(tmp_path, steps), "run")
    assert {curve.metric for curve in curves} == {f"meds/eigen_ratio_{span}" for span in ("all", "step", "window")}
    eigenvalues = np.linalg.eigvalsh(np.cov(np.array([[1, 0], [0, 1], [0, 0]]).T))
    assert values(curves, "meds/eigen_ratio_all")[1] == pytest.approx(eigenvalues[-1] / eigenvalues.sum())


def test_differences_are_taken_where_both_have_a_value(tmp_path: Path) -> None:
    logged = [{"meds/eigen_ratio_step": 1.0}, {"meds/eigen_ratio_step": 0.75}, {"other": 3.0}]
    run = written(tmp_path, logged)
    curves = logged_curves([run], [*METRICS.values()], "none")
    assert values(curves, "meds/eigen_ratio_step") == {1: 1.0, 2: 0.75}
    recomputed = recomputed_curves(run, run.name)
    assert largest_differences(curves, recomputed) == pytest.approx({"meds/eigen_ratio_step": 0.25})


def test_the_late_mean_is_of_the_last_quarter(tmp_path: Path) -> None:
    run = written(tmp_path / "one", [{"meds/eigen_ratio_all": step / 10} for step in range(1, 9)])
    curve = logged_curves([run], ["meds/eigen_ratio_all"], "none")[0]
    assert curve.late == pytest.approx(0.75)
    assert table_of([curve]).splitlines()[2].split("|")[1:8] == [
        " one ", " all ", "     8 ", " 0.1000 ", " 0.1000 ", " 0.8000 ", " 0.7500 ",
    ]  # fmt: skip


def test_runs_are_compared_in_one_table_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [written(tmp_path / name, [{"meds/eigen_ratio_all": 1.0}, {"meds/eigen_ratio_all": 0.5}]) for name in "ab"]
    options = ["--recompute", "--figure", str(tmp_path / "f.svg"), "--json", str(tmp_path / "n.json")]
    assert main([*map(str, runs), *options]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in printed[2:4]] == ["a", "b"]
    assert printed[4].startswith("meds/eigen_ratio_all: at most ")
    numbers = json.loads((tmp_path / "n.json").read_text())
    assert [one["values"] for one in numbers["logged"]] == [[1.0, 0.5], [1.0, 0.5]]
    assert len(numbers["recomputed"]) == 2 * 3
    assert b"</svg>" in (tmp_path / "f.svg").read_bytes()


def test_a_run_without_eigen_ratios_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.endswith("nowhere: does not exist. Name the folder of a run that has trained.\n")
    assert main([str(written(tmp_path / "plain", [{"reward": 1.0}]))]) == 2
    assert "logged no eigen ratio. A baseline needs a memory of layer logits too" in capsys.readouterr().err


def test_a_damaged_line_is_named_and_a_torn_last_one_is_not_there(tmp_path: Path) -> None:
    run = written(tmp_path / "one", [{"meds/eigen_ratio_all": 0.5}])
    path = run / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole + '{"step": 2, "meds/eig')
    assert logged_curves([run], ["meds/eigen_ratio_all"], "none")[0].values.tolist() == [0.5]
    path.write_text(whole + "half a line\n")
    with pytest.raises(ConfigError, match="has a line that is not JSON"):
        logged_curves([run], ["meds/eigen_ratio_all"], "none")
