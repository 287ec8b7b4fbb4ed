"""What looks like a key, a token or a password: it is refused in settings, and hidden in messages, logs and reports.

Needs only the standard library: ray_jobs/submit.sh runs this file, `python3 -I credentials.py`, on machines without
this package.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

HIDDEN = "***"
# Tokens by the prefixes of those who issue them. W&B's older keys are 40 hexadecimal digits, as the commits in every
# path of the hub's cache are: these are found by their name or by the environment's value alone.
_TOKEN = re.compile(
    r"\b(?:hf|gh[opsur]|github_pat|npm|r8|gsk|wandb_v\d|dop_v1|glsa|lsv2_(?:pt|sk)|tskey|(?:sk|rk|pk)_live)_[\w-]{16,}"
    r"|\b(?:sk|glpat|nvapi|pypi|xai|pplx|fw|csk)-[\w-]{16,}|\bxox[a-z]-[\w-]{8,}|\bxapp-[\w-]{8,}"
    r"|\bAIza[\w-]{20,}|\bya29\.[\w-]{16,}|\bdapi[0-9a-f]{16,}|\bA(?:KI|SI)A[A-Z0-9]{12,}|\bhv[sb]\.[\w-]{16,}"
    r"|\bSG\.[\w-]{16,}\.[\w-]{16,}|\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]{0,10000}(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?"
    r"|\b(?:Bearer|Basic) +[\w.~+/=-]{3,}"
    r"|\bhooks\.slack\.com/[\w/-]+|\bdiscord(?:app)?\.com/api/webhooks/[\w/-]+"
)
# User name and password in an address, also if the password contains a slash: the text before it is no valid port then.
# Lengths are bounded, so that no text takes time that grows with its square.
_USER_IN_ADDRESS = re.compile(
    r"://([^/?#\s]{0,200}|[^/?#\s@]{0,200}:(?!\d{0,9}([/?#\s]|$))\S{0,200})@",
)
_SECRET_IN_QUERY = re.compile(
    r"([?&;#](?:code|[^=?&;#\s]{0,80}?(?:key|token|secret|sig|signature|passw(?:or)?d|pass|pwd|credentials?|auth))=)"
    r"[^&;#\s]+",
    re.IGNORECASE,
)
_SECRET_NAME = re.compile(
    r"api_?key|(access|private|secret)_?key|secret|passw|credential|(^|_)(token|pwd|pass)$|^key$|cookie|webhook",
    re.IGNORECASE,
)
# Names such as data.input_key or eval.max_tokens are harmless, so their values must also look like secrets:
# letters and digits without order, but no words and numbers with hyphens between them.
_DOUBTFUL_NAME = re.compile(r"key|token|auth", re.IGNORECASE)
_LOOKS_RANDOM = re.compile(r"(?!([A-Za-z]+|\d+)(-([A-Za-z]+|\d+))*$)(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+/=-]{16,}")
_SECRET_VARIABLE = re.compile(
    r"(^|_)(API)?(KEY|TOKEN|SECRET|PASS(WD|WORD|PHRASE)?|PWD|CREDENTIAL|COOKIE|WEBHOOK|AUTH)S?\d*(_|$)", re.IGNORECASE
)
_NO_SECRETS = ("PWD", "OLDPWD")  # folders
_SHORTEST = 8  # characters; shorter values may occur in any text by chance


def hidden(text: str) -> str:
    """The text with what is recognized as a credential by its form replaced by "***"."""
    text = _TOKEN.sub(HIDDEN, _USER_IN_ADDRESS.sub(f"://{HIDDEN}@", text))
    return _SECRET_IN_QUERY.sub(rf"\1{HIDDEN}", text)


def credentials_in(settings: Mapping[str, Any]) -> list[str]:
    """The dotted names of the settings (nested) that have a credential's name, or a value that has its form."""
    found = []
    for name, value in _leaves("", settings):
        is_given = value not in (None, "") and not isinstance(value, bool)
        if _has_form(name) or (is_given and (_is_named(name) or _has_form(str(value)))):
            found.append(hidden(name))
    return found


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}".removeprefix("."), item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(name, item)
    else:
        yield name, value


def redacted(content: Mapping[str, Any], environment: Mapping[str, str]) -> Any:
    """``content`` (nested) with every value that contains a secret, also from ``environment``, replaced by "***"."""
    return _redacted("", content, secrets_of(environment))


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """The values of the variables whose names look like secrets, and the ``user:password`` of their addresses."""
    named = [value for name, value in environment.items() if is_secret_variable(name)]
    in_addresses = [found[1] for value in environment.values() for found in _USER_IN_ADDRESS.finditer(value)]
    return [secret for secret in (*named, *in_addresses) if len(secret) >= _SHORTEST]


def is_secret_variable(name: str) -> bool:
    """Whether an environment variable of this name has a secret."""
    return name not in _NO_SECRETS and _SECRET_VARIABLE.search(name) is not None


def without_keys(text: str) -> str:
    """Hide in ``text`` the secrets of this process's environment, and what is recognized as a credential."""
    for secret in secrets_of(os.environ):
        text = text.replace(secret, HIDDEN)
    return hidden(text)


def _has_form(value: str) -> bool:
    return any(form.search(value) for form in (_USER_IN_ADDRESS, _SECRET_IN_QUERY, _TOKEN))


def _is_named(name: str) -> bool:
    return _SECRET_NAME.search(name.rpartition(".")[2]) is not None


def _redacted(name: str, value: Any, secrets: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {_shown(key, secrets): _redacted(str(key), item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redacted(name, item, secrets) for item in value]
    if value is None or isinstance(value, bool) or value == "":
        return value
    if isinstance(value, str):
        doubtful = _DOUBTFUL_NAME.search(name) and _LOOKS_RANDOM.fullmatch(value)
        return HIDDEN if doubtful or _is_named(name) or _shown(value, secrets) == HIDDEN else value
    return HIDDEN if _is_named(name) else value


def _shown(text: Any, secrets: list[str]) -> Any:
    is_secret = isinstance(text, str) and (_has_form(text) or any(secret in text for secret in secrets))
    return HIDDEN if is_secret else text


def _settings_of(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Name and value of each word: ``NAME=VALUE``, ``--name=value``, or a value after ``--name``."""
    name = ""
    for word in words:
        named = re.match(r"(?:--)?([\w.]+)(=|$)", word) if word.startswith("--") else re.match(r"(\w+)(=)", word)
        name = named[1] if named else name
        yield name, word[named.end() :] if named else word


def main() -> int:
    """Name the first of the words of the standard input, each ended by NUL, that is a credential; exit code 1."""
    words = sys.stdin.buffer.read().decode("utf-8", "replace").split("\0")[:-1]
    for (name, value), word in zip(_settings_of(words), words):
        named = _is_named(name) or (not word.startswith("-") and is_secret_variable(name))
        if _has_form(word) or (value and named):
            print(hidden(name) or "a word")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
