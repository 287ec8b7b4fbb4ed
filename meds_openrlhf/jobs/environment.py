"""The environment that a job gets from the submitting machine. Keys are sent only on request.

Ray stores a job's environment in clear text: its dashboard, its job API and a log file on every node show it to anyone
with access. So keys belong in the environment of the nodes themselves, which a job inherits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from meds_openrlhf.addresses import names_a_user
from meds_openrlhf.config import ConfigError

# Sent if they are set, except addresses that contain a user name or password.
SETTINGS = (
    *("WANDB_PROJECT", "WANDB_ENTITY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_TAGS", "WANDB_NOTES"),
    *("SWANLAB_MODE", "SWANLAB_API_HOST", "SWANLAB_PROJ_NAME", "SWANLAB_WORKSPACE"),
    *("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"),
    *("HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_HUB_DISABLE_XET", "HF_HOME", "RAY_JOB_STOP_WAIT_TIME_S"),
)
# Keys that a run may need; a message names the keys that are set here and not sent.
KEYS = (
    *("WANDB_API_KEY", "SWANLAB_API_KEY", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD", "HF_TOKEN"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
)
# From SIGTERM to SIGKILL when a job is stopped: time for the current step and its checkpoint. Ray's default is 3 s.
STOP_SECONDS = "900"
_LOOKS_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)


@dataclass(frozen=True)
class JobEnvironment:
    """The variables of a job."""

    variables: dict[str, str] = field(repr=False)  # keep values out of tracebacks
    exposed: tuple[str, ...]  # names of the secrets among them
    withheld: tuple[str, ...]  # names of secrets that are set here and not sent


def job_environment(names: Sequence[str], environ: Mapping[str, str]) -> JobEnvironment:
    """`SETTINGS` without secrets, and the variables ``names``. Raises ConfigError if ``environ`` lacks any of them."""
    for name in names:
        if "=" in name:
            raise ConfigError(
                "--env",
                name.partition("=")[0],
                "comes with a value, and whoever lists processes reads command lines; set it in the environment and "
                "give its name alone",
            )
        if name not in environ:
            raise ConfigError("--env", name, "is not set in this environment")
    secret = {name for name, value in environ.items() if _LOOKS_SECRET.search(name) or names_a_user(value)}
    sent = (*(name for name in SETTINGS if name in environ and name not in secret), *names)
    return JobEnvironment(
        variables={"RAY_JOB_STOP_WAIT_TIME_S": STOP_SECONDS, **{name: environ[name] for name in sent}},
        exposed=tuple(name for name in names if name in secret),
        withheld=tuple(name for name in (*KEYS, *SETTINGS) if name in secret and name not in names),
    )
