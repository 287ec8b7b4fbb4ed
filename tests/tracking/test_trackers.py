"""Where a run is sent, and under which names and id."""

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.tracking.trackers import NOWHERE, TRACKERS, TrackedRun, wanted_trackers
from tests.tracking.written_run import WrittenRun

NAMES = {"run_name": "WANDB_NAME", "project": "WANDB_PROJECT", "group": "WANDB_RUN_GROUP", "org": "WANDB_ENTITY"}
FLAGS = "logger:\n  wandb: {run_name: night, project: vegetables, group: apples, org: garden}\n"


def names(run: WrittenRun) -> list[str | None]:
    tracked = TrackedRun(run.paths, print)
    return [tracked.setting(flag, variable) for flag, variable in NAMES.items()]


def test_flags_and_the_trackers_own_variables_name_the_run(run: WrittenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names(run) == [None, "fruit", None, None]
    assert TrackedRun(run.paths, print).name == "my-run"
    assert TrackedRun(run.paths, print).setting("group", "WANDB_RUN_GROUP", "pears") == "pears"
    run.paths.config.write_text("meds:\n  run_dir: x\n" + FLAGS)
    assert names(run) == ["night", "vegetables", "apples", "garden"]
    assert TrackedRun(run.paths, print).name == "night"
    monkeypatch.setenv("WANDB_PROJECT", "p")
    monkeypatch.setenv("WANDB_NAME", "")
    assert names(run) == ["night", "p", "apples", "garden"]


def test_the_id_is_stored_before_the_first_session_and_stays(run: WrittenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    first = TrackedRun(run.paths, print).id
    assert len(first) == 12
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    assert first == TrackedRun(run.paths, print).id == run.id()
    run.paths.tracking.unlink()
    assert TrackedRun(run.paths, print).id == run.id() == "mine"


@pytest.mark.parametrize("content", ["[1]", "{", '{"tensorboard": {}}'])
def test_a_damaged_file_gets_another_id(run: WrittenRun, content: str) -> None:
    run.paths.tracking.write_text(content)
    assert TrackedRun(run.paths, print).id == run.id()


def test_a_wrong_configuration_is_the_users(run: WrittenRun) -> None:
    run.paths.config.write_text("meds: [no configuration]\n")
    with pytest.raises(ConfigError):
        TrackedRun(run.paths, print)


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"WANDB_API_KEY": ""}, False),
        ({"WANDB_API_KEY": "k"}, True),
        ({"WANDB_MODE": "offline"}, True),
        ({"WANDB_MODE": "online"}, False),
        ({"WANDB_API_KEY": "k", "WANDB_MODE": "disabled"}, False),
    ],
)
def test_wandb_is_used_where_the_environment_asks_for_it(environment: dict[str, str], wanted: bool) -> None:
    assert ("wandb" in wanted_trackers(environment)) is wanted


@pytest.mark.parametrize(
    ("environment", "swanlab", "mlflow"),
    [
        ({}, False, False),
        ({"SWANLAB_API_KEY": "k"}, True, False),
        ({"SWANLAB_MODE": "offline"}, True, False),
        ({"SWANLAB_MODE": "online"}, False, False),
        ({"SWANLAB_API_KEY": "k", "SWANLAB_MODE": "disabled"}, False, False),
        ({"MLFLOW_TRACKING_URI": "http://mlflow:5000", "MLFLOW_TRACKING_TOKEN": "t"}, False, True),
        ({"MLFLOW_TRACKING_URI": ""}, False, False),
    ],
)
def test_swanlab_and_mlflow_are_used_where_the_environment_asks_for_them(
    environment: dict[str, str], swanlab: bool, mlflow: bool
) -> None:
    found = wanted_trackers(environment)
    assert ("swanlab" in found, "mlflow" in found) == (swanlab, mlflow)


def test_a_run_that_is_for_nobody_goes_nowhere() -> None:
    everything = {"WANDB_API_KEY": "k", "SWANLAB_API_KEY": "k", "MLFLOW_TRACKING_URI": "http://mlflow:5000"}
    environment = {**everything, **NOWHERE}
    assert wanted_trackers(environment) == ["tensorboard"]
    assert wanted_trackers(everything) == list(TRACKERS)
