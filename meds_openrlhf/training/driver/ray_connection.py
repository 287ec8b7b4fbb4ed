"""The driver's connection to a Ray cluster, and the environment of the run's workers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ray._private import services

from meds_openrlhf.placement.ray_cluster import joined
from meds_openrlhf.training import cpu


@contextmanager
def ray_connection(*, on_cpu: bool, verbose: bool) -> Iterator[None]:
    """Connect to the cluster of RAY_ADDRESS or a local `ray start`; otherwise start one on this machine."""
    starts_ray = not os.environ.get("RAY_ADDRESS")
    runtime_env: dict[str, Any] = {"env_vars": worker_environment(cpu.ENVIRONMENT if on_cpu else _defaults())}
    if on_cpu:
        runtime_env["worker_process_setup_hook"] = f"{cpu.__name__}.install"  # Ray imports it by name
    options: dict[str, Any] = {"log_to_driver": verbose, "logging_level": "INFO" if verbose else "ERROR"}
    if on_cpu and starts_ray:
        options.update(address="local", num_gpus=cpu.MADE_UP_GPUS, num_cpus=cpu.MADE_UP_CPUS, include_dashboard=False)
    hint = "; `ray stop` forgets one that is gone" if starts_ray else "; unset it to start one here"
    with _sessions_of_their_own(), joined(hint, runtime_env=runtime_env, **options):
        yield


@contextmanager
def _sessions_of_their_own() -> Iterator[None]:
    """Keep Ray's processes from what a terminal or `timeout` sends to this process's whole group: Ctrl-C, SIGTERM.

    The driver handles these; a cluster that died of them could save no checkpoint.
    """
    popen = services.ConsolePopen
    services.ConsolePopen = partial(popen, start_new_session=True)  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        services.ConsolePopen = popen  # type: ignore[misc]


def worker_environment(variables: dict[str, str]) -> dict[str, str]:
    """Return ``variables`` without those that the submitted job sets, since Ray rejects duplicate variables."""
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}")
    given = job.get("runtime_env", {}).get("env_vars", {})
    return {name: value for name, value in variables.items() if name not in given}


def _defaults() -> dict[str, str]:
    """Return OpenRLHF's defaults for its workers; values in this process's environment take precedence."""
    defaults = {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "WARN", "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1"}
    return {name: os.environ.get(name, value) for name, value in defaults.items()}
