"""Where a run is sent, and under which names."""

from pathlib import Path

import pytest

from meds_openrlhf.config import MedsSettings, RunConfig
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.sending.destinations import tensorboard_folder, wandb_names, wandb_wanted

PATHS = RunPaths(Path("/runs/my-run"))
FLAGS = {
    "logger.tensorboard_dir": "/boards", "logger.wandb.run_name": "night", "logger.wandb.project": "fruit",
    "logger.wandb.group": "apples", "logger.wandb.org": "garden",
}  # fmt: skip


def test_without_flags_the_run_has_the_name_of_its_folder() -> None:
    config = RunConfig(MedsSettings(run_dir="x"), {})
    assert tensorboard_folder(config, PATHS) == "/runs/my-run/tensorboard/my-run"
    assert wandb_names(config, PATHS, {}) == {"name": "my-run", "project": "openrlhf_train_ppo"}


def test_openrlhf_flags_name_the_run() -> None:
    config = RunConfig(MedsSettings(run_dir="x"), FLAGS)
    assert tensorboard_folder(config, PATHS) == "/boards/night"
    names = wandb_names(config, PATHS, {})
    assert names == {"name": "night", "project": "fruit", "group": "apples", "entity": "garden"}


def test_what_wandb_is_told_by_the_environment_is_left_to_it() -> None:
    config = RunConfig(MedsSettings(run_dir="x"), FLAGS)
    environment = {"WANDB_PROJECT": "p", "WANDB_ENTITY": "e", "WANDB_NAME": ""}
    assert wandb_names(config, PATHS, environment) == {"name": "night", "group": "apples"}


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
    assert wandb_wanted(environment) is wanted
