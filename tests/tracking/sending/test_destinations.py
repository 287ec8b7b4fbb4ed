"""Where a run is sent, and under which names."""

from pathlib import Path

import pytest

from meds_openrlhf.config import MedsSettings, MemorySettings, RunConfig
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.sending.destinations import Destinations, destinations_of, wandb_wanted

PATHS = RunPaths(Path("/runs/my-run"))


def test_without_flags_the_run_has_the_name_of_its_folder() -> None:
    to = destinations_of(RunConfig(MedsSettings(run_dir="x"), {}), PATHS)
    assert to == Destinations("/runs/my-run/tensorboard/my-run", "my-run", "openrlhf_train_ppo", None, None)


def test_openrlhf_flags_name_the_run() -> None:
    flags = {
        "logger.tensorboard_dir": "/boards", "logger.wandb.run_name": "night", "logger.wandb.project": "fruit",
        "logger.wandb.group": "apples", "logger.wandb.org": "garden",
    }  # fmt: skip
    meds = MedsSettings(run_dir="x", memory=MemorySettings(archive="s3://bucket/a"))
    to = destinations_of(RunConfig(meds, flags), PATHS)
    assert to == Destinations("/boards/night", "night", "fruit", "apples", "garden", "reference", "s3://bucket/a")
    assert to.of_wandb({}) == {"name": "night", "project": "fruit", "group": "apples", "entity": "garden"}


def test_the_archive_is_named_without_its_credentials() -> None:
    meds = MedsSettings(run_dir="x", memory=MemorySettings(archive="s3://KEY:s3cr3t@bucket/runs/a?secret_key=s3cr3t"))
    assert destinations_of(RunConfig(meds, {}), PATHS).archive == "s3://bucket/runs/a"


def test_what_wandb_is_told_by_the_environment_is_left_to_it() -> None:
    to = Destinations("/boards/night", "night", "fruit", "apples", "garden")
    environment = {"WANDB_PROJECT": "p", "WANDB_ENTITY": "e", "WANDB_NAME": ""}
    assert to.of_wandb(environment) == {"name": "night", "group": "apples"}


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
    assert wandb_wanted(environment) is wanted
