"""OpenRLHF settings that may name local files, and how to distinguish a local file from a name on a hub."""

from __future__ import annotations

import os
from pathlib import Path

from meds_openrlhf.config.errors import ConfigError

FILE_SETTINGS = (
    *("actor.model_name_or_path", "critic.model_name_or_path", "reward.model_name_or_path"),
    *("data.prompt_dataset", "eval.dataset", "reward.remote_url", "train.agent_func_path"),
)
DATA_SUFFIXES = frozenset({".json", ".jsonl", ".csv", ".parquet", ".arrow"})


def require_lasting_in_job(name: str, folder: Path) -> None:
    """Raise ConfigError about the setting ``name`` if this process is a Ray job and would lose ``folder``."""
    if os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") and not folder.is_absolute():
        hint = (
            "is relative, and a submitted job runs in a copy of its folder that Ray throws away; name it from the "
            "root, on storage that every node sees"
        )
        raise ConfigError(name, str(folder), hint)
