"""A client of the head's job server over HTTP; connection errors become one-line messages."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient

from meds_openrlhf.config import ConfigError

SECONDS = (10, 60)  # timeouts for the connection and for the response
# Ray prefers these variables over the address argument.
_OVERRIDES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")


class JobServer(JobSubmissionClient):
    """Ray's client with timeouts: raises an error if the head has stopped answering, instead of waiting forever."""

    def _do_request(self, method: str, endpoint: str, **options: Any) -> requests.Response:
        options.setdefault("timeout", SECONDS)
        response: requests.Response = super()._do_request(method, endpoint, **options)
        return response

    @property
    def ray_version(self) -> str | None:
        """The cluster's Ray version."""
        version: str | None = self._server_ray_version
        return version


def connect(address: str) -> JobServer:
    """Connect to the job server at ``address``. Raises ConfigError if it does not answer or its Ray version differs."""
    url = address if "://" in address else f"http://{address}"
    if not url.startswith(("http://", "https://")):
        raise ConfigError("--address", address, "is no dashboard's address; write it as http://head:8265")
    _silence_ray()
    try:
        with _without_overrides():
            server = JobServer(url)
    except (ConnectionError, requests.ConnectionError, requests.Timeout) as error:
        raise ConfigError(
            "--address",
            address,
            "does not answer; name the head's dashboard (port 8265), started with `ray start --head "
            "--dashboard-host=0.0.0.0` where it is another machine",
        ) from error
    except AuthenticationError as error:
        raise ConfigError("--address", address, f"refuses this user: {first_sentence(error)}") from error
    except (RuntimeError, requests.RequestException, ValueError, KeyError) as error:
        raise ConfigError(
            "--address",
            address,
            f"answers, but is no Ray dashboard ({first_sentence(error)}); its port is mostly 8265",
        ) from error
    if server.ray_version != ray.__version__:
        raise ConfigError(
            "--address",
            address,
            f"runs Ray {server.ray_version} and this machine {ray.__version__}; install on both what this package pins",
        )
    return server


@contextmanager
def _without_overrides() -> Iterator[None]:
    removed = {name: os.environ.pop(name) for name in _OVERRIDES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(removed)


def _silence_ray() -> None:
    """Suppress Ray's messages about packaging, which repeat ours at length."""
    for name in ("ray", "ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk"):
        logging.getLogger(name).setLevel(logging.ERROR)


def first_sentence(error: BaseException) -> str:
    """The first sentence of an error's message; of a traceback, the error at its end."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    line = lines[-1] if "Traceback" in lines[0] else lines[0]
    return line.split(". ")[0].rstrip(".")
