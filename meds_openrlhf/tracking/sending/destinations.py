"""Where a run's metrics are sent: TensorBoard always; W&B, SwanLab and MLflow if the environment requests them."""

from __future__ import annotations

from collections.abc import Mapping

from meds_openrlhf.config import RunConfig
from meds_openrlhf.paths import RunPaths

# Trackers by package: the name for users, and the class of the sessions, which is in the module PACKAGE_session.
TRACKERS = {
    "tensorboard": ("TensorBoard", "TensorBoardSession"),
    "wandb": ("W&B", "WandbSession"),
    "swanlab": ("SwanLab", "SwanlabSession"),
    "mlflow": ("MLflow", "MlflowSession"),
}
PROJECT = "openrlhf_train_ppo"  # OpenRLHF's default
# MLflow reads these when it is imported: nothing is sent to its makers, and newer versions accept a folder's address.
MLFLOW_SETTINGS = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
# The environment of a run that is sent to no server.
NOWHERE = {"WANDB_MODE": "disabled", "SWANLAB_MODE": "disabled", "MLFLOW_TRACKING_URI": ""}

# What names a run at a tracker: the tracker's own variables, which take precedence over OpenRLHF's flags.
_VARIABLES = {
    "tensorboard": {"name": ""},
    "wandb": {"name": "WANDB_NAME", "project": "WANDB_PROJECT", "group": "WANDB_RUN_GROUP", "entity": "WANDB_ENTITY"},
    "swanlab": {"name": "SWANLAB_EXP_NAME", "project": "SWANLAB_PROJ_NAME", "group": "SWANLAB_GROUP"},
    "mlflow": {"name": "", "project": "MLFLOW_EXPERIMENT_NAME"},
}


def wanted_trackers(environment: Mapping[str, str]) -> list[str]:
    """The packages of the trackers that this environment requests: by a key, an address, or offline mode."""
    wanted = ["tensorboard"]
    for package in ("wandb", "swanlab"):
        key, mode = environment.get(f"{package.upper()}_API_KEY"), environment.get(f"{package.upper()}_MODE")
        if mode != "disabled" and (key or is_offline(package, environment)):
            wanted.append(package)
    return [*wanted, *(["mlflow"] if environment.get("MLFLOW_TRACKING_URI") else [])]


def is_offline(package: str, environment: Mapping[str, str]) -> bool:
    """Whether W&B or SwanLab only writes files, for `wandb sync` or `swanlab sync`."""
    mode = environment.get(f"{package.upper()}_MODE")
    return mode == "offline" or (package == "wandb" and mode == "dryrun")


def names_of(package: str, config: RunConfig, paths: RunPaths, environment: Mapping[str, str]) -> dict[str, str]:
    """The name, project, group and entity of the run, those that the tracker knows and does not have a variable for."""
    flags = config.openrlhf
    names = {
        "name": flags.get("logger.wandb.run_name") or paths.root.name,
        "project": flags.get("logger.wandb.project") or PROJECT,
        "group": flags.get("logger.wandb.group"),
        "entity": flags.get("logger.wandb.org"),
    }
    variables = _VARIABLES[package].items()
    return {name: str(names[name]) for name, variable in variables if names[name] and not environment.get(variable)}
