"""Models in folders and on the Hugging Face hub, also where the hub cannot be reached, and those with their own code.

A model can bring Python that would run as the user. It runs where the user says so, and nowhere else: whatever loads a
model calls `require_trusted` first.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from meds_openrlhf.adapters import PEFT_CONFIG
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import MOST_TEXT, read_file

HUB = "https://huggingface.co"
HUB_SECONDS = 3.0


# For what loads models of a training, as OpenRLHF does, once `require_trusted` has let them pass.
WITH_ITS_CODE = {"trust_remote_code": True}
_LONGEST_CHAIN = 4  # of adapters, each of which names its base
_MOST_JSON = 16 * MOST_TEXT  # of a model's file, which transformers reads whatever its size


def require_trusted(name: str, field: str, trusted: bool, must_find: bool = False) -> None:
    """Raise ConfigError about ``field`` if the model ``name`` has code of its own and is not ``trusted``.

    A model that is nowhere passes, unless it ``must_find`` one.
    """
    if trusted:
        return
    for _ in range(_LONGEST_CHAIN):
        folder = _files_of(name)
        if folder is None:
            if must_find:
                hint = "is neither a folder nor in the hub's cache, and cannot be read from the hub."
                raise ConfigError(field, name, hint)
            return
        file = _code_in(folder)
        if file is not None:
            setting = "set meds.trust_remote_code to true" if "." in field else "add --trust-remote-code"
            hint = f"has Python code of its own ({file}), which would run as you. If you trust it, {setting}."
            raise ConfigError(field, name, hint)
        base = _base_of(folder / PEFT_CONFIG)
        if base in (None, name):
            return
        name = base
    raise ConfigError(field, name, "is named by too long a chain of adapters.")


def _files_of(name: str) -> Path | None:
    """The folder with the model's files, without weights; None if it is nowhere."""
    if Path(name).exists():
        return Path(name)
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "custom_generate/*.py"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, local_files_only=not hub_answers()))
    except (OSError, ValueError):  # there is no such model, or no hub
        return None


def _code_in(folder: Path) -> str | None:
    """The name of a file in a model's folder that is code, or names a Python file; None if there is none."""
    if (folder / "custom_generate" / "generate.py").is_file():
        return "generate.py"
    return next((path.name for path in sorted(folder.glob("*.json")) if path.is_file() and _names_code(path)), None)


def _names_code(path: Path) -> bool:
    """Whether a JSON file names a Python file, under ``auto_map`` at any depth.

    It is read with json.loads, as transformers reads it: what `parse_json` refuses could hide a name.
    """
    content = read_file(path, _MOST_JSON)
    if b"auto_map" not in content and b"\\u" not in content:
        return False
    try:
        named = _values_of("auto_map", json.loads(content))
        return any(isinstance(value, (dict, list, str)) and value for value in named)
    except (ValueError, RecursionError):
        return b"auto_map" in content


def _values_of(key: str, content: Any) -> Iterator[Any]:
    inner = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    if isinstance(content, dict) and key in content:
        yield content[key]
    for value in inner:
        yield from _values_of(key, value)


def _base_of(path: Path) -> str | None:
    """The model that an adapter's configuration names; read as in `_names_code`."""
    if not path.is_file():
        return None
    try:
        name = json.loads(read_file(path, _MOST_JSON)).get("base_model_name_or_path")
    except (ValueError, RecursionError, AttributeError):  # transformers reads none either
        return None
    return name if isinstance(name, str) and name else None


@contextmanager
def loading(name: str, field: str, trusted: bool) -> Iterator[dict[str, Any]]:
    """Yield the options with which ``from_pretrained`` loads the model ``name``, from its folder, the cache or the hub.

    Raises ConfigError, naming ``field``, if it cannot be loaded, or as `require_trusted` does.
    """
    require_trusted(name, field, trusted)
    only_here = not Path(name).exists() and not hub_answers()  # the hub's client would retry for half a minute
    try:
        yield {"local_files_only": only_here, "trust_remote_code": trusted}
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
