"""The connection of a command to a Ray cluster, and the environment of its workers."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray._private import services

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.runtime.devices import CPU_ENVIRONMENT, MADE_UP_CPUS, MADE_UP_GPUS

ANSWER_SECONDS = 10.0
# Options of actors that get no tensors: otherwise Ray imports torch into their processes, 200 MB each.
WITHOUT_TENSORS = {"runtime_env": {"env_vars": {"RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "0"}}}
CPU_SETUP = "meds_openrlhf.training.host.cpu.install"  # Ray imports it by name in every worker


@contextmanager
def ray_connection(*, on_cpu: bool, verbose: bool) -> Iterator[None]:
    """Connect to the cluster of RAY_ADDRESS or a local `ray start`; otherwise start one on this machine."""
    starts_ray = not os.environ.get("RAY_ADDRESS")
    runtime_env: dict[str, Any] = {"env_vars": worker_environment(CPU_ENVIRONMENT if on_cpu else _defaults())}
    if on_cpu:
        runtime_env["worker_process_setup_hook"] = CPU_SETUP
    options: dict[str, Any] = {"log_to_driver": verbose, "logging_level": "INFO" if verbose else "ERROR"}
    if on_cpu and starts_ray:
        options.update(address="local", num_gpus=MADE_UP_GPUS, num_cpus=MADE_UP_CPUS, include_dashboard=False)
    hint = "Run `ray stop` to forget a cluster that is gone." if starts_ray else "Unset it to start a cluster here."
    with _sessions_of_their_own(), joined(hint, runtime_env=runtime_env, **options):
        yield


@contextmanager
def joined(hint: str, **options: Any) -> Iterator[None]:
    """Connect to the cluster of RAY_ADDRESS, or as the ``options`` of `ray.init` say, for the block.

    Raises ConfigError, with ``hint`` if no cluster answers, and without it if the cluster cannot be joined, for example
    because it runs another version of Ray or Python.
    """
    address = os.environ.get("RAY_ADDRESS") or None
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        _require_answer(address or "")
        ray.init(**{**quiet, **options})
    except ConnectionError as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError("RAY_ADDRESS", address, f"no Ray cluster answers ({reason}). {hint}") from error
    except (RuntimeError, ValueError) as error:
        if address is None:
            raise
        raise ConfigError("RAY_ADDRESS", address, f"cannot be joined: {' '.join(str(error).split())}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _require_answer(address: str) -> None:
    """Raise ConnectionError if nothing listens at ``address``; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
    except OSError as error:
        raise ConnectionError(str(error)) from error


@contextmanager
def _sessions_of_their_own() -> Iterator[None]:
    """Protect Ray's processes from signals that a terminal or `timeout` sends to this process's group: Ctrl-C, SIGTERM.

    The driver handles these signals; a cluster that ended on them could not save a checkpoint.
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


def require_lasting_in_job(name: str, folder: Path) -> None:
    """Raise ConfigError about the setting ``name`` if this process is a Ray job and would lose ``folder``."""
    if os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") and not folder.is_absolute():
        hint = "a submitted job runs in a copy of its folder that Ray deletes. Name an absolute path on shared storage."
        raise ConfigError(name, folder, hint)


def _defaults() -> dict[str, str]:
    """Return OpenRLHF's defaults for its workers; values in this process's environment take precedence."""
    defaults = {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "WARN", "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1"}
    return {name: os.environ.get(name, value) for name, value in defaults.items()}
