"""Whether the Hugging Face hub can be reached."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from urllib.parse import urlparse

HUB = "https://huggingface.co"
HUB_SECONDS = 3.0


def can_be_reached(name: str) -> bool:
    """Return whether a model is a local folder, or the hub, which may have it, is reachable."""
    return Path(name).exists() or hub_answers()


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
