"""Where a run's metrics are sent: TensorBoard always, Weights & Biases if the environment requests it."""

from __future__ import annotations

from collections.abc import Mapping

from meds_openrlhf.config import RunConfig
from meds_openrlhf.paths import RunPaths

PROJECT = "openrlhf_train_ppo"  # OpenRLHF's default


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
    return {key: str(value) for key, (variable, value) in named.items() if value and not environment.get(variable)}


def wandb_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the environment requests Weights & Biases, by a key or by offline mode."""
    mode = environment.get("WANDB_MODE", "")
    return mode != "disabled" and bool(environment.get("WANDB_API_KEY") or wandb_is_offline(environment))


def wandb_is_offline(environment: Mapping[str, str]) -> bool:
    """Whether W&B only writes files, for `wandb sync`."""
    return environment.get("WANDB_MODE", "") in ("offline", "dryrun")


def _name(config: RunConfig, paths: RunPaths) -> str:
    return str(config.openrlhf.get("logger.wandb.run_name") or paths.root.name)
