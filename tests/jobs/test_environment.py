"""Keys stay on the machine that submits, unless they are asked for by name."""

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.jobs.environment import job_environment

HOME = {"WANDB_API_KEY": "hush", "HF_TOKEN": "hush", "WANDB_PROJECT": "math", "MY_TOKEN": "hush", "NCCL_DEBUG": "INFO"}


def test_settings_go_along_and_keys_do_not() -> None:
    environment = job_environment([], HOME)
    assert environment.variables == {"RAY_JOB_STOP_WAIT_TIME_S": "900", "WANDB_PROJECT": "math"}
    assert environment.withheld == ("WANDB_API_KEY", "HF_TOKEN")
    assert environment.exposed == ()
    assert job_environment([], {"RAY_JOB_STOP_WAIT_TIME_S": "60"}).variables == {"RAY_JOB_STOP_WAIT_TIME_S": "60"}


def test_what_is_asked_for_goes_along_and_keys_among_it_are_named() -> None:
    environment = job_environment(["WANDB_API_KEY", "MY_TOKEN", "NCCL_DEBUG"], HOME)
    assert environment.variables["WANDB_API_KEY"] == "hush"
    assert environment.variables["NCCL_DEBUG"] == "INFO"
    assert environment.exposed == ("WANDB_API_KEY", "MY_TOKEN")
    assert environment.withheld == ("HF_TOKEN",)
    assert "hush" not in repr(environment)


def test_settings_of_other_trackers_go_along_too() -> None:
    settings = {"SWANLAB_PROJ_NAME": "math", "MLFLOW_TRACKING_URI": "http://mlflow:5000"}
    environment = job_environment([], {**settings, "SWANLAB_API_KEY": "hush", "MLFLOW_TRACKING_PASSWORD": "hush"})
    assert environment.variables == {"RAY_JOB_STOP_WAIT_TIME_S": "900", **settings}
    assert environment.withheld == ("SWANLAB_API_KEY", "MLFLOW_TRACKING_PASSWORD")


def test_an_address_with_a_password_is_a_key() -> None:
    home = {"WANDB_BASE_URL": "https://user:hush@wandb.local/x", "HF_ENDPOINT": "https://hub.local/a@b"}
    environment = job_environment([], home)
    assert environment.variables == {"RAY_JOB_STOP_WAIT_TIME_S": "900", "HF_ENDPOINT": "https://hub.local/a@b"}
    assert environment.withheld == ("WANDB_BASE_URL",)
    environment = job_environment(["WANDB_BASE_URL"], home)
    assert environment.variables["WANDB_BASE_URL"] == home["WANDB_BASE_URL"]
    assert (environment.exposed, environment.withheld) == (("WANDB_BASE_URL",), ())
    with_a_slash = {"HF_ENDPOINT": "https://user:hu/sh@hub.local"}
    assert job_environment([], with_a_slash).withheld == ("HF_ENDPOINT",)


def test_a_value_on_the_command_line_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match=r"--env: 'WANDB_API_KEY' comes with a value") as refused:
        job_environment(["WANDB_API_KEY=hush"], {})
    assert "hush" not in str(refused.value)
    with pytest.raises(ConfigError, match=r"--env: 'HF_TOKEN' is not set in this environment"):
        job_environment(["HF_TOKEN"], {})
