"""What the driver hands to the cluster."""

import json

import pytest

from meds_openrlhf.runtime import ray_connection


def test_workers_get_openrlhfs_defaults_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS"):
        monkeypatch.delenv(name, raising=False)
    job = {"runtime_env": {"env_vars": {"TOKENIZERS_PARALLELISM": "false"}}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert ray_connection.worker_environment(ray_connection._defaults()) == {
        "NCCL_DEBUG": "INFO",
        "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
    }
