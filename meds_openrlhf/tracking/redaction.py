"""Hide everything that looks like a key, a token or a password: in a run's configuration, in messages and logs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
_SECRET_NAME = re.compile(
    r"api_?key|(access|private|secret)_?key|secret|passw|credential|(^|_)token$|^key$", re.IGNORECASE
)
# Names such as data.input_key or eval.max_tokens are harmless, so their values must also look like secrets:
# letters and digits without order, but no words and numbers with hyphens between them.
_DOUBTFUL_NAME = re.compile(r"key|token|auth", re.IGNORECASE)
_LOOKS_RANDOM = re.compile(r"(?!([A-Za-z]+|\d+)(-([A-Za-z]+|\d+))*$)(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+/=-]{16,}")
_SECRET_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
# User name and password in an address, also if the password contains a slash: the text before it is no valid port then.
_USER_IN_ADDRESS = re.compile(r"://([^/?#\s]*|[^/?#\s@]*:(?!\d*([/?#\s]|$))\S*)@")
_SECRET_IN_QUERY = re.compile(
    r"[?&;#][^=&;#\s]*(key|token|secret|sig|signature|passw(or)?d|pass|pwd|credentials?|auth)=[^&;#\s]", re.IGNORECASE
)
# Tokens of Hugging Face, GitHub, W&B, OpenAI and AWS. W&B's older keys are 40 hexadecimal digits, as the commits in
# every path of the hub's cache are: these are hidden by their name or by the environment's value alone.
_KNOWN_TOKEN = re.compile(r"\b((hf|gh[pousr]|wandb_v\d)_\w{16,}|sk-[\w-]{16,}|AKIA[A-Z0-9]{12,})")
_SHORTEST = 8  # characters; shorter values may occur in any text by chance


def redacted(content: Mapping[str, Any], environment: Mapping[str, str]) -> Any:
    """``content`` (nested) with every string that contains a secret, also from ``environment``, replaced by "***"."""
    return _redacted("", content, secrets_of(environment))


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


def _redacted(name: str, value: Any, secrets: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _redacted(str(key), item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redacted(name, item, secrets) for item in value]
    return HIDDEN if isinstance(value, str) and value and _is_secret(name, value, secrets) else value


def _is_secret(name: str, value: str, secrets: list[str]) -> bool:
    return bool(
        any(secret in value for secret in secrets)
        or any(form.search(value) for form in (_USER_IN_ADDRESS, _SECRET_IN_QUERY, _KNOWN_TOKEN))
        or _SECRET_NAME.search(name)
        or (_DOUBTFUL_NAME.search(name) and _LOOKS_RANDOM.fullmatch(value))
    )
