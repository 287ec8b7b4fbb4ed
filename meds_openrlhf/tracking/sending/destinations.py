"""Where a run's metrics are sent: TensorBoard always, Weights & Biases if the environment requests it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meds_openrlhf.addresses import without_credentials
from meds_openrlhf.config import RunConfig
from meds_openrlhf.paths import RunPaths

TENSORBOARD, WANDB = "tensorboard", "wandb"
# W&B's own environment variables take precedence over the flags, as in W&B itself.
_VARIABLES = {"name": "WANDB_NAME", "project": "WANDB_PROJECT", "group": "WANDB_RUN_GROUP", "entity": "WANDB_ENTITY"}

PROJECT = "openrlhf_train_ppo"  # OpenRLHF's default


@dataclass(frozen=True)
class Destinations:
    """OpenRLHF's and our settings for trackers. They appear on a command line and contain no secrets."""

    tensorboard: str  # the folder of this run's event files
    name: str
    project: str = PROJECT
    group: str | None = None
    entity: str | None = None
    snapshots: str = "reference"
    archive: str | None = None  # without credentials; only for W&B's artifacts

    def of_wandb(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """The arguments of `wandb.init` that name the run, except those that the environment sets."""
        return {name: getattr(self, name) for name, variable in _VARIABLES.items() if not environment.get(variable)}


def destinations_of(config: RunConfig, paths: RunPaths) -> Destinations:
    """The destinations of the run ``config`` in the folder ``paths``."""
    flags, archive = config.openrlhf, config.meds.memory.archive
    name = str(flags.get("logger.wandb.run_name") or paths.root.name)
    given = {
        "project": flags.get("logger.wandb.project"),
        "group": flags.get("logger.wandb.group"),
        "entity": flags.get("logger.wandb.org"),
    }
    return Destinations(
        tensorboard=f"{flags.get('logger.tensorboard_dir') or paths.tensorboard}/{name}",
        name=name,
        snapshots=config.meds.tracking.snapshots,
        archive=None if archive is None else without_credentials(archive),
        **{key: str(value) for key, value in given.items() if value is not None},
    )


def wandb_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the environment requests Weights & Biases, by a key or by offline mode."""
    mode = environment.get("WANDB_MODE", "")
    return mode != "disabled" and bool(environment.get("WANDB_API_KEY") or mode in ("offline", "dryrun"))


def wandb_is_offline(environment: Mapping[str, str]) -> bool:
    """Whether W&B only writes files, for `wandb sync`."""
    return environment.get("WANDB_MODE", "") in ("offline", "dryrun")
