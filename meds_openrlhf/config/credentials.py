"""What looks like a key, a token or a password: it is refused in settings, and hidden in messages, logs and reports.

A setting is refused by its name (`_is_named`) or by its value's form (`_has_form`). Also hidden are the values of
environment variables with a secret's name (`is_secret_variable`), and random letters under a doubtful name.

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
# Tokens by the prefixes of those who issue them, with a tail that is no word. W&B's older keys are 40 hexadecimal
# digits, as the commits in every path of the hub's cache are: these are found by their name or by the environment's
# value alone.
_TOKEN = re.compile(
    r"\b(?:hf|gh[opsur]|npm|r8|gsk|fw|api_org|dckr_pat|dop_v1|glsa|tgp_v1|lsv2_(?:pt|sk)|(?:sk|rk|pk)_(?:live|test))"
    r"_[A-Za-z0-9]{16,}|\b(?:github_pat|wandb_v\d)_\w{16,}"
    r"|\b(?:sk|xai|pplx|csk|fw|tskey)-(?:[a-z0-9]{2,12}-){0,3}(?=[A-Za-z]{0,99}\d)(?=\d{0,99}[A-Za-z])\w{16,}"
    r"|\b(?:glpat|gldt|nvapi|pypi|GOCSPX)-[\w-]{16,}|\bxox[a-z]-[\w-]{8,}|\bxapp-[\w-]{8,}"
    r"|\bAIza[\w-]{20,}|\bya29\.[\w-]{16,}|\bdapi[0-9a-f]{16,}|\bA(?:KI|SI)A[A-Z0-9]{12,}|\bhv[sb]\.[\w-]{16,}"
    r"|\bSG\.[\w-]{16,}\.[\w-]{16,}|\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----[^-]{0,10000}(?:-----END [A-Z ]{0,40}-----)?"
    r"|\b(?i:bearer) +(?=[\w~+/-]{0,99}[\d.=])[\w.~+/=-]{3,}|\bBasic +(?=[A-Za-z+/]{0,99}[\d=])[\w+/=]{12,}"
    r"|\bhooks\.slack\.com/[\w/-]+|\bdiscord(?:app)?\.com/api/webhooks/[\w/-]+"
)
# User name and password in an address, also if the password contains a slash: the text before it is no valid port then.
# Lengths are bounded, so that no text takes time that grows with its square.
_USER_IN_ADDRESS = re.compile(r"(?<!ssh)://([^/?#\s]{0,200}|[^/?#\s@]{0,200}:(?!\d{0,9}([/?#\s]|$))\S{0,200})@")
_SECRET_IN_QUERY = re.compile(
    r"([?&;#](?:code=(?=[^&;#\s]{8})|[^=?&;#\s]{0,80}?"
    r"(?:key|token|secret|sig|signature|passw(?:or)?d|pass|pwd|credentials?|auth)=))[^&;#\s]+",
    re.IGNORECASE,
)
_SECRET_NAME = re.compile(
    r"api[-_]?key|^authorization$|(access|private|secret)_?key|secret|passw|credential"
    r"|(^|_)(token|pwd|pass)$|^key$|cookie|webhook",
    re.IGNORECASE,
)
# Names such as data.input_key or eval.max_tokens are harmless, so their values must also look like secrets:
# letters and digits without order, but no words and numbers with hyphens between them.
_DOUBTFUL_NAME = re.compile(r"key|token|auth", re.IGNORECASE)
_LOOKS_RANDOM = re.compile(r"(?!([A-Za-z]+|\d+)(-([A-Za-z]+|\d+))*$)(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+/=-]{16,}")
_SECRET_VARIABLE = re.compile(
    r"(^|_)(API)?(KEY|TOKEN|SECRET|PASS(WD|WORD|PHRASE)?|PWD|CREDENTIAL|COOKIE|WEBHOOK|AUTH)S?\d*(_|$)", re.IGNORECASE
)
# Folders, and where a key is.
_NO_SECRETS = re.compile(r"(OLD)?PWD|.*MAX_TOKENS|.*_(MODE|SOCK|PATH|FILE|DIR)", re.IGNORECASE)
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
    return _SECRET_VARIABLE.search(name) is not None and not _NO_SECRETS.fullmatch(name)


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


def _assignments(words: Iterable[str]) -> Iterator[tuple[str, str, bool]]:
    """Name, value, and whether the name is known to be a credential's: of ``--name value``, or of ``NAME=VALUE``."""
    name = ""
    for word in words:
        if word.startswith("--"):
            name, _, value = word.removeprefix("--").partition("=")
            yield name, value, _is_named(name)
        elif name:
            yield name, word, _is_named(name)
        else:
            variable, equals, value = word.partition("=")
            yield variable, value, bool(equals) and (_is_named(variable) or is_secret_variable(variable))


def main() -> int:
    """Name the first of the words of the standard input, each ended by NUL, that is a credential; exit code 1.

    The words are those of a command line, or one line of a file of environment variables.
    """
    words = sys.stdin.buffer.read().decode("utf-8", "replace").split("\0")[:-1]
    for (name, value, named), word in zip(_assignments(words), words):
        if _has_form(word) or (value and named):
            print(hidden(name) or "a word")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
