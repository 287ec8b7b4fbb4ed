"""Models in folders and on the Hugging Face hub, also where the hub cannot be reached."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from meds_openrlhf.config.errors import ConfigError

HUB = "https://huggingface.co"
HUB_SECONDS = 3.0


@contextmanager
def loading(name: str, field: str) -> Iterator[dict[str, Any]]:
    """Yield the options with which ``from_pretrained`` loads the model ``name``, from its folder, the cache or the hub.

    Raises ConfigError, naming ``field``, if it cannot be loaded.
    """
    only_here = not Path(name).exists() and not hub_answers()  # the hub's client would retry for half a minute
    try:
        yield {"local_files_only": only_here, "trust_remote_code": True}
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(field, name, f"cannot be loaded ({reason}). Name another model, or its folder.") from error


def hub_answers() -> bool:
    """Return whether the hub is reachable, since its client retries for half a minute; True if a proxy is set."""
    if os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE"):
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    address = urlparse(os.environ.get("HF_ENDPOINT", HUB))
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), timeout=HUB_SECONDS).close()
    except OSError:
        return False
    return True
