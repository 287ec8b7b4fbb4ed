"""Redact a run's configuration for display: hide everything that looks like a key, a token or a password."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
_SECRET_NAME = re.compile(
    r"api_?key|(access|private|secret)_?key|secret|passw|credential|(^|_)token$|^key$", re.IGNORECASE
)
# Names such as data.input_key or eval.max_tokens are harmless, so their values must also look like secrets.
_DOUBTFUL_NAME = re.compile(r"key|token|auth", re.IGNORECASE)
_SECRET_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_SECRET_IN_QUERY = re.compile(
    r"[?&;#][^=&;#\s]*(key|token|secret|sig|signature|passw(or)?d|pass|pwd|credentials?|auth)=[^&;#\s]", re.IGNORECASE
)
# Tokens of Hugging Face, GitHub, W&B, OpenAI and AWS. W&B's older keys are 40 hexadecimal digits, as the commits in
# every path of the hub's cache are: these are hidden by their name or by the environment's value alone.
_KNOWN_TOKEN = re.compile(r"\b((hf|gh[pousr]|wandb_v\d)_\w{16,}|sk-[\w-]{16,}|AKIA[A-Z0-9]{12,})")
# Letters and digits without order, but no words and numbers with hyphens between them.
_LOOKS_RANDOM = re.compile(r"(?!([A-Za-z]+|\d+)(-([A-Za-z]+|\d+))*$)(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+/=-]{16,}")
# User name and password in an address, also if the password contains a slash: the text before it is no valid port then.
_USER_IN_ADDRESS = re.compile(r"://([^/?#\s]*|[^/?#\s@]*:(?!\d*([/?#\s]|$))\S*)@")
_SHORTEST = 8  # characters; shorter values may occur in any text by chance


def redacted(content: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """``content`` (nested) with every string that contains a secret, also from ``environment``, replaced by "***"."""
    secrets = secrets_of(environment)
    return {name: _redacted(str(name), value, secrets) for name, value in content.items()}


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """The values of the variables whose names look like secrets, and the ``user:password`` of their addresses."""
    named = [value for name, value in environment.items() if _SECRET_VARIABLE.search(name)]
    in_addresses = [found[1] for value in environment.values() for found in _USER_IN_ADDRESS.finditer(value)]
    return [secret for secret in (*named, *in_addresses) if len(secret) >= _SHORTEST]


def without_keys(text: str) -> str:
    """Hide the secrets of this process's environment in ``text``."""
    for secret in secrets_of(os.environ):
        text = text.replace(secret, HIDDEN)
    return text


def described(error: Exception) -> str:
    """An error in one short line without secrets."""
    return textwrap.shorten(without_keys(f"{type(error).__name__}: {error}"), 200)


def _redacted(name: str, value: Any, secrets: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _redacted(str(key), item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redacted(name, item, secrets) for item in value]
    if isinstance(value, str) and value and (_is_secret(name, value) or any(secret in value for secret in secrets)):
        return HIDDEN
    return value


def _is_secret(name: str, value: str) -> bool:
    if _SECRET_NAME.search(name):
        return True
    if _USER_IN_ADDRESS.search(value) or any(form.search(value) for form in (_SECRET_IN_QUERY, _KNOWN_TOKEN)):
        return True
    return bool(_DOUBTFUL_NAME.search(name) and _LOOKS_RANDOM.fullmatch(value))
