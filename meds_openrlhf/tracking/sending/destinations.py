"""Where a run's metrics are sent: TensorBoard always; W&B, SwanLab and MLflow if the environment requests them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meds_openrlhf.config import RunConfig
from meds_openrlhf.paths import RunPaths

PROJECT = "openrlhf_train_ppo"  # OpenRLHF's default
# MLflow reads these when it is imported: nothing is sent to its makers, and newer versions accept a folder's address.
MLFLOW_SETTINGS = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
# The environment of a run that is sent to no server.
NOWHERE = {"WANDB_MODE": "disabled", "SWANLAB_MODE": "disabled", "MLFLOW_TRACKING_URI": ""}


def tensorboard_folder(config: RunConfig, paths: RunPaths) -> str:
    """The folder of the run's event files."""
    return f"{config.openrlhf.get('logger.tensorboard_dir') or paths.tensorboard}/{_name(config, paths)}"


def wandb_names(config: RunConfig, paths: RunPaths, environment: Mapping[str, str]) -> dict[str, str]:
    """The arguments of `wandb.init` that name the run, from OpenRLHF's flags; W&B's own variables take precedence."""
    flags = config.openrlhf
    named = {
        "name": ("WANDB_NAME", _name(config, paths)),
        "project": ("WANDB_PROJECT", flags.get("logger.wandb.project") or PROJECT),
        "group": ("WANDB_RUN_GROUP", flags.get("logger.wandb.group")),
        "entity": ("WANDB_ENTITY", flags.get("logger.wandb.org")),
    }
    return _not_set(named, environment)


def swanlab_names(config: RunConfig, paths: RunPaths, environment: Mapping[str, str]) -> dict[str, str]:
    """The arguments of `swanlab.init` that name the run; SwanLab's own variables take precedence."""
    flags = config.openrlhf
    named = {
        "name": ("SWANLAB_EXP_NAME", _name(config, paths)),
        "project": ("SWANLAB_PROJ_NAME", flags.get("logger.wandb.project") or PROJECT),
        "group": ("SWANLAB_GROUP", flags.get("logger.wandb.group")),
    }
    return _not_set(named, environment)


def mlflow_names(config: RunConfig, paths: RunPaths, environment: Mapping[str, str]) -> tuple[str, str]:
    """The names of MLflow's experiment, for which MLflow's own variable takes precedence, and of the run in it."""
    project = environment.get("MLFLOW_EXPERIMENT_NAME") or config.openrlhf.get("logger.wandb.project") or PROJECT
    return str(project), _name(config, paths)


def wandb_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the environment requests Weights & Biases, by a key or by offline mode."""
    mode = environment.get("WANDB_MODE", "")
    return mode != "disabled" and bool(environment.get("WANDB_API_KEY") or wandb_is_offline(environment))


def wandb_is_offline(environment: Mapping[str, str]) -> bool:
    """Whether W&B only writes files, for `wandb sync`."""
    return environment.get("WANDB_MODE", "") in ("offline", "dryrun")


def swanlab_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the environment requests SwanLab, by a key or by offline mode."""
    mode = environment.get("SWANLAB_MODE", "")
    return mode != "disabled" and bool(environment.get("SWANLAB_API_KEY") or mode == "offline")


def mlflow_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the environment requests MLflow, by an address; that of a folder makes it write files."""
    return bool(environment.get("MLFLOW_TRACKING_URI"))


def _not_set(named: Mapping[str, tuple[str, Any]], environment: Mapping[str, str]) -> dict[str, str]:
    """The values of ``named`` whose variables are not set."""
    return {key: str(value) for key, (variable, value) in named.items() if value and not environment.get(variable)}


def _name(config: RunConfig, paths: RunPaths) -> str:
    return str(config.openrlhf.get("logger.wandb.run_name") or paths.root.name)
