"""Open a run at Weights & Biases under our id, with the metric names of OpenRLHF's dashboards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import wandb
import yaml
from pydantic import ValidationError

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.redaction import redacted
from meds_openrlhf.tracking.sending.destinations import Destinations

AXIS = "train/global_step"
# Timeout of W&B's client; the user gets a message much earlier (see `Patience`).
INIT_SECONDS = 600.0


class UnfitClientError(Exception):
    """W&B's client rejects the settings; it needs another version or other environment variables."""


def open_run(paths: RunPaths, to: Destinations, run_id: str, environment: Mapping[str, str]) -> Any:
    """Open a new run or resume it. Waits for W&B, unless it is offline.

    Raises wandb.Error if W&B refuses, and UnfitClientError if its client rejects the settings.
    """
    paths.root.joinpath("wandb").mkdir(exist_ok=True)
    folder: dict[str, Any] = {} if environment.get("WANDB_DIR") else {"dir": str(paths.root)}
    config = redacted(_read_config(paths), environment)
    named = to.of_wandb(environment)
    try:
        run = wandb.init(id=run_id, resume="allow", config=config, settings=_settings(), **named, **folder)
    except ValidationError as error:  # its message shows the values, which may include a key
        raise UnfitClientError(", ".join(".".join(map(str, one["loc"])) for one in error.errors())) from None
    except TypeError as error:
        raise UnfitClientError(str(error)) from error
    run.define_metric(AXIS)
    run.define_metric("train/*", step_metric=AXIS)
    run.define_metric("eval/*", step_metric=AXIS)
    return run


def _settings() -> wandb.Settings:
    return wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        init_timeout=INIT_SECONDS,
        quiet=True,
        silent=True,
        x_disable_machine_info=True,  # it would describe this process, not the training
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
        x_transaction_log_flush_interval=1.0,
    )


def _read_config(paths: RunPaths) -> dict[str, Any]:
    if not paths.config.exists():
        return {}
    content = yaml.safe_load(paths.config.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}
