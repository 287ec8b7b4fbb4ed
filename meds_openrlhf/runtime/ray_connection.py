"""The connection of a command to a Ray cluster, and the environment of its workers."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import ray
from ray._private import services
from ray._private.utils import get_num_cpus
from ray._raylet import (  # type: ignore[attr-defined]
    AuthenticationMode,
    AuthenticationTokenLoader,
    Config,
    get_authentication_mode,
)
from ray.exceptions import AuthenticationError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.runtime.devices import MADE_UP_CPUS, MADE_UP_GPUS, cpu_environment
from meds_openrlhf.runtime.ray_token import MODE, TOKEN, TOKEN_PATH, write_token

ANSWER_SECONDS = 10.0
STARTS = 3  # of a local cluster
TOO_SLOW = ("timed out during startup", "Timed out waiting for file")
# Options of actors that get no tensors: otherwise Ray imports torch into their processes, 200 MB each.
WITHOUT_TENSORS = {"runtime_env": {"env_vars": {"RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "0"}}}
CPU_SETUP = "meds_openrlhf.training.openrlhf.cpu.install"  # Ray imports it by name in every worker


@contextmanager
def ray_connection(*, on_cpu: bool, verbose: bool, say: Callable[[str], None] = print) -> Iterator[None]:
    """Connect to the cluster of RAY_ADDRESS or a local `ray start`; otherwise start one on this machine.

    A cluster that starts here asks for a token. If another does not, ``say`` gets a line.
    """
    runtime_env: dict[str, Any] = {"env_vars": worker_environment(cpu_environment() if on_cpu else _defaults())}
    if on_cpu:
        runtime_env["worker_process_setup_hook"] = CPU_SETUP
    options: dict[str, Any] = {"log_to_driver": verbose, "logging_level": "INFO" if verbose else "ERROR"}
    starts_ray = starts_ray_here(on_cpu)
    if starts_ray:
        gpus, cpus = resources_here(on_cpu)
        options.update(address="local", num_gpus=gpus, num_cpus=cpus, include_dashboard=False if on_cpu else None)
    with ExitStack() as stack:
        stack.enter_context(_sessions_of_their_own())
        if starts_ray:
            stack.enter_context(_token_of_its_own())
        stack.enter_context(joined(hint_without_answer(), runtime_env=runtime_env, **options))
        if get_authentication_mode() == AuthenticationMode.DISABLED:
            say("warning: this Ray cluster asks for no token, so anyone who reaches its ports can run code in it")
        yield


def hint_without_answer() -> str:
    """Say what to do if no cluster answers."""
    is_stated = os.environ.get("RAY_ADDRESS", "") not in ("", "local")
    return "Unset it to start a cluster here." if is_stated else "Run `ray stop` to forget a cluster that is gone."


def starts_ray_here(on_cpu: bool) -> bool:
    """Return whether `ray_connection` starts a cluster: without RAY_ADDRESS, and on GPUs without a `ray start`."""
    if os.environ.get("RAY_ADDRESS", "") not in ("", "local"):
        return False
    address = "local" if on_cpu else os.environ.get("RAY_ADDRESS") or None
    return services.canonicalize_bootstrap_address(address) is None


def resources_here(on_cpu: bool) -> tuple[int, int]:
    """Return the GPUs and CPUs of a cluster that `ray_connection` starts."""
    if on_cpu:
        return MADE_UP_GPUS, MADE_UP_CPUS
    import torch

    return torch.cuda.device_count(), get_num_cpus()


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
        _start_or_join({**quiet, **options})
    except ConnectionError as error:
        reason = str(error).strip().partition("\n")[0]
        token = f"If it asks for a token, set {MODE}=token and {TOKEN_PATH}. "
        raise ConfigError("RAY_ADDRESS", address, f"no Ray cluster answers ({reason}). {token}{hint}") from error
    except AuthenticationError as error:
        hint = f"Set {TOKEN_PATH} to the file with that of the cluster."
        raise ConfigError(TOKEN_PATH, os.environ.get(TOKEN_PATH), f"there is no token. {hint}") from error
    except (RuntimeError, ValueError) as error:
        if address is None:
            raise
        raise ConfigError("RAY_ADDRESS", address, f"cannot be joined: {' '.join(str(error).split())}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _start_or_join(options: dict[str, Any]) -> None:
    """`ray.init`; again if a new cluster needs longer than Ray's own 30 s, which a busy machine may."""
    for left in reversed(range(STARTS)):
        try:
            ray.init(**options)
            return
        except Exception as error:  # Ray raises no class of its own; what has started ends with this process
            if not left or not any(text in str(error) for text in TOO_SLOW):
                raise
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
def _token_of_its_own() -> Iterator[None]:
    """Have a cluster that starts in this block ask for a token, and remove it afterwards; one that is set is kept."""
    variables = {} if os.environ.get(MODE) else {MODE: "token"}
    path = Path(gettempdir(), f"meds-ray-token-{os.getpid()}-{secrets.token_hex(8)}")
    try:
        if not (os.environ.get(TOKEN) or os.environ.get(TOKEN_PATH)):
            variables[TOKEN_PATH] = str(write_token(path))
        with authentication(variables):
            yield
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def authentication(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of Ray's authentication for the block; Ray itself reads them only when it is imported."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        os.environ.update(variables)
        _read_authentication()
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})
        _read_authentication()


def _read_authentication() -> None:
    AuthenticationTokenLoader.instance().reset_cache()
    Config.initialize("")


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


def this_node(soft: bool = False) -> Any:
    """Return the scheduling strategy for actors on this node, where they survive the loss of other nodes.

    With ``soft``, Ray may place them elsewhere if this node has no room.
    """
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=soft)
