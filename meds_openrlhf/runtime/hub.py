"""Models in folders and on the Hugging Face hub, also where the hub cannot be reached, and those with their own code.

A model can bring Python that would run as the user. It runs where the user says so, and nowhere else: whatever loads a
model calls `require_trusted` first, and gives `CHECKED` to what loads it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.json_text import parse_json

HUB = "https://huggingface.co"
HUB_SECONDS = 3.0


# Without an option, transformers would ask on stdin; a model without code of its own is loaded alike with it.
CHECKED = {"trust_remote_code": True}
# The files of a model that may name a Python file of its own, under ``auto_map``.
_NAMING_CODE = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")


def require_trusted(name: str, field: str, trusted: bool) -> None:
    """Raise ConfigError about ``field`` if the model ``name`` has code of its own and is not ``trusted``.

    A model that cannot be found passes, because it cannot be loaded either.
    """
    files = () if trusted else _NAMING_CODE
    for file in files:
        path = Path(name, file) if Path(name).exists() else _path_on_hub(name, file)
        if path is not None and path.is_file() and _names_code(path):
            setting = "set meds.trust_remote_code to true" if "." in field else "add --trust-remote-code"
            hint = f"has Python code of its own ({file}), which would run as you. If you trust it, {setting}."
            raise ConfigError(field, name, hint)


def _path_on_hub(name: str, file: str) -> Path | None:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, file, local_files_only=not hub_answers()))
    except (OSError, ValueError):  # there is no such model or file, or no hub
        return None


def _names_code(path: Path) -> bool:
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # which nothing can load
        return False
    return isinstance(content, dict) and bool(content.get("auto_map"))


@contextmanager
def loading(name: str, field: str, trusted: bool) -> Iterator[dict[str, Any]]:
    """Yield the options with which ``from_pretrained`` loads the model ``name``, from its folder, the cache or the hub.

    Raises ConfigError, naming ``field``, if it cannot be loaded, or as `require_trusted` does.
    """
    require_trusted(name, field, trusted)
    only_here = not Path(name).exists() and not hub_answers()  # the hub's client would retry for half a minute
    try:
        yield {"local_files_only": only_here, **CHECKED}
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
