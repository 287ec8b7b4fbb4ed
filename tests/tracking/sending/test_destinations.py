"""Where a run is sent, and under which names."""

from pathlib import Path

import pytest

from meds_openrlhf.config import MedsSettings, RunConfig
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.sending.destinations import NOWHERE, TRACKERS, names_of, wanted_trackers

PATHS = RunPaths(Path("/runs/my-run"))
FLAGS = {
    "logger.tensorboard_dir": "/boards", "logger.wandb.run_name": "night", "logger.wandb.project": "fruit",
    "logger.wandb.group": "apples", "logger.wandb.org": "garden",
}  # fmt: skip


def test_without_flags_the_run_has_the_name_of_its_folder() -> None:
    config = RunConfig(MedsSettings(run_dir="x"), {})
    assert names_of("tensorboard", config, PATHS, {}) == {"name": "my-run"}
    assert names_of("wandb", config, PATHS, {}) == {"name": "my-run", "project": "openrlhf_train_ppo"}


def test_openrlhf_flags_name_the_run() -> None:
    config = RunConfig(MedsSettings(run_dir="x"), FLAGS)
    assert names_of("tensorboard", config, PATHS, {}) == {"name": "night"}
    names = names_of("wandb", config, PATHS, {})
    assert names == {"name": "night", "project": "fruit", "group": "apples", "entity": "garden"}


def test_what_wandb_is_told_by_the_environment_is_left_to_it() -> None:
    config = RunConfig(MedsSettings(run_dir="x"), FLAGS)
    environment = {"WANDB_PROJECT": "p", "WANDB_ENTITY": "e", "WANDB_NAME": ""}
    assert names_of("wandb", config, PATHS, environment) == {"name": "night", "group": "apples"}


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"WANDB_API_KEY": ""}, False),
        ({"WANDB_API_KEY": "k"}, True),
        ({"WANDB_MODE": "offline"}, True),
        ({"WANDB_MODE": "dryrun"}, True),
        ({"WANDB_MODE": "online"}, False),
        ({"WANDB_API_KEY": "k", "WANDB_MODE": "disabled"}, False),
    ],
)
def test_wandb_is_used_where_the_environment_asks_for_it(environment: dict[str, str], wanted: bool) -> None:
    assert ("wandb" in wanted_trackers(environment)) is wanted


def test_swanlab_and_mlflow_have_the_same_names_and_their_own_variables_take_precedence() -> None:
    config = RunConfig(MedsSettings(run_dir="x"), FLAGS)
    assert names_of("swanlab", config, PATHS, {}) == {"name": "night", "project": "fruit", "group": "apples"}
    environment = {"SWANLAB_PROJ_NAME": "p", "SWANLAB_EXP_NAME": "e", "SWANLAB_GROUP": "g"}
    assert names_of("swanlab", config, PATHS, environment) == {}
    assert names_of("mlflow", config, PATHS, {}) == {"name": "night", "project": "fruit"}
    assert names_of("mlflow", config, PATHS, {"MLFLOW_EXPERIMENT_NAME": "e"}) == {"name": "night"}
    bare = RunConfig(MedsSettings(run_dir="x"), {})
    assert names_of("mlflow", bare, PATHS, {}) == {"name": "my-run", "project": "openrlhf_train_ppo"}


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
