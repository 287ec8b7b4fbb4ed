"""Where a run is sent, and under which names and id."""

import json

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.tracking.trackers import NOWHERE, TRACKERS, TrackedRun, wanted_trackers
from tests.tracking.written_run import WrittenRun

FLAGS = "logger:\n  wandb: {run_name: night, project: vegetables, group: apples, org: garden}\n"


def names(run: WrittenRun) -> list[str | None]:
    variables = {
        "run_name": "WANDB_NAME",
        "project": "WANDB_PROJECT",
        "group": "WANDB_RUN_GROUP",
        "org": "WANDB_ENTITY",
    }
    return [TrackedRun(run.paths).setting(flag, variable) for flag, variable in variables.items()]


def test_flags_and_the_trackers_own_variables_name_the_run(run: WrittenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names(run) == ["my-run", "fruit", None, None]
    run.paths.config.write_text("meds:\n  run_dir: x\n" + FLAGS)
    assert names(run) == ["night", "vegetables", "apples", "garden"]
    run.paths.config.write_text("meds:\n  run_dir: x\n" + FLAGS.replace("night", "2026-11-25"))  # a date to YAML
    assert names(run)[0] == "2026-11-25"
    run.paths.config.write_text("meds:\n  run_dir: x\n" + FLAGS)
    monkeypatch.setenv("WANDB_PROJECT", "p")
    monkeypatch.setenv("WANDB_NAME", "")
    assert names(run) == ["night", "p", "apples", "garden"]
    run.paths.config.write_text("- no configuration\n")
    with pytest.raises(ConfigError):
        TrackedRun(run.paths)


def test_the_id_is_stored_before_the_first_session_and_stays(run: WrittenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    first = TrackedRun(run.paths).id
    assert len(first) == 12
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    assert first == TrackedRun(run.paths).id == run.id()
    run.paths.tracking.write_text('{"damaged"')
    assert TrackedRun(run.paths).id == run.id() == "mine"


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, []),
        ({"WANDB_API_KEY": "", "SWANLAB_API_KEY": "", "MLFLOW_TRACKING_URI": ""}, []),
        ({"WANDB_MODE": "online", "SWANLAB_MODE": "online"}, []),
        ({"WANDB_API_KEY": "k"}, ["wandb"]),
        ({"WANDB_MODE": "offline", "SWANLAB_API_KEY": "k"}, ["wandb", "swanlab"]),
        ({"WANDB_API_KEY": "k", "WANDB_MODE": "disabled", "SWANLAB_MODE": "offline"}, ["swanlab"]),
        ({"MLFLOW_TRACKING_URI": "http://mlflow:5000", "MLFLOW_TRACKING_TOKEN": "t"}, ["mlflow"]),
        (dict.fromkeys(("WANDB_API_KEY", "SWANLAB_API_KEY", "MLFLOW_TRACKING_URI"), "x"), list(TRACKERS)[1:]),
        ({"WANDB_API_KEY": "k", "SWANLAB_API_KEY": "k", "MLFLOW_TRACKING_URI": "x", **NOWHERE}, []),
    ],
)
def test_trackers_are_used_where_the_environment_asks_for_them(environment: dict[str, str], wanted: list[str]) -> None:
    assert wanted_trackers(environment) == ["tensorboard", *wanted]


@pytest.mark.parametrize("stored", ["*", "../../up", "a" * 65, "a b", "", "[abc]"])
def test_an_id_that_is_no_name_is_refused(run: WrittenRun, stored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if stored:
        run.paths.tracking.write_text(json.dumps({"id": stored}))
    else:
        monkeypatch.setenv("WANDB_RUN_ID", stored := "../mine")
    with pytest.raises(ConfigError, match="is no id of a run: 1 to 64 letters, digits, - and _"):
        TrackedRun(run.paths)
