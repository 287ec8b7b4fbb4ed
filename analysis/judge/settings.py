"""Settings of the judge, each an option of the command line: server, retries and budget."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.json_text import parse_json

PROVIDER = "https://api.openai.com/v1"
KEY_VARIABLE = "OPENAI_API_KEY"
_OURS = ("model", "messages", "stream")  # fields of the request that the user cannot replace


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not an object of fields")
    return value


def _option(flag: str, metavar: str, default: Any, hint: str, type: Any = int, least: float | None = None) -> Any:
    """A setting with the option that sets it; numbers are at least ``least``, or above 0."""
    option = {"flag": flag, "least": least, "metavar": metavar, "type": type, "help": hint}
    return field(default=default, metadata=option)


@dataclass(frozen=True, kw_only=True)
class JudgeSettings:
    """Settings of a judge; the help of each option explains it. Raises ConfigError for invalid values."""

    model: str = field(metadata={"flag": "--judge-model", "metavar": "NAME", "help": "its name at the server"})
    url: str = _option("--judge-url", "URL", PROVIDER, f"of a server of chat completions; default: {PROVIDER}", str)
    key_variable: str | None = _option(
        "--judge-key-variable", "NAME", None, f"environment variable with the key; default: {KEY_VARIABLE}, if set", str
    )
    reply_tokens: int = _option("--judge-reply-tokens", "N", 1024, "longest reply; default: 1024")
    request: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={
            **{"flag": "--judge-request", "metavar": "JSON", "type": _json_object},
            "help": 'more fields of the request; null leaves one out: {"temperature": null, "reasoning_effort": "low"}',
        },
    )
    constrained: bool = field(
        default=False,
        metadata={
            **{"flag": "--judge-constrained", "action": "store_true"},
            "help": "vLLM only: hold replies to the form, without thinking first",
        },
    )
    attempts: int = _option("--judge-attempts", "N", 3, "times to ask if replies are malformed; default: 3")
    tries: int = _option("--judge-tries", "N", 6, "times to send if the server fails; default: 6")
    timeout_seconds: float = _option("--judge-timeout", "SECONDS", 180.0, "for one request; default: 180", float)
    concurrency: int = _option("--judge-concurrency", "N", 8, "requests at once; default: 8")
    cache: Path = field(
        default=Path("judge-cache"),
        metadata={"flag": "--cache", "metavar": "FOLDER", "type": Path, "help": "of replies; default: judge-cache"},
    )
    most_requests: int | None = _option(
        "--budget-requests", "N", None, "most requests to send, 0: the cache alone; default: no limit", least=0
    )
    most_tokens: int | None = _option("--budget-tokens", "N", None, "stop after N tokens; default: no limit", least=0)

    def __post_init__(self) -> None:
        _check_url(self.base_url)
        if not self.model:
            raise ConfigError("--judge-model", self.model, "must not be empty. Name the judge as its server knows it.")
        for entry in fields(self):
            value, least = getattr(self, entry.name), entry.metadata.get("least")
            if type(value) not in (int, float):
                continue
            if least is None and value <= 0:
                raise ConfigError(entry.metadata["flag"], value, "must be above 0.")
            if least is not None and value < least:
                raise ConfigError(entry.metadata["flag"], value, f"must be at least {least}.")
        for name in self.request:
            if name in _OURS:
                raise ConfigError("--judge-request", name, "is part of the question and cannot be replaced.")

    @property
    def base_url(self) -> str:
        """The address that `/chat/completions` is added to."""
        return self.url.rstrip("/")

    @property
    def variable(self) -> str:
        """The environment variable with the key."""
        return self.key_variable or KEY_VARIABLE

    def read_key(self) -> str | None:
        """Read the key; None for a server that needs none. Raises ConfigError, never with the key in it."""
        key = os.environ.get(self.variable) or None
        if key is None and (self.key_variable or self.base_url == PROVIDER):
            raise ConfigError("--judge-key-variable", self.variable, "is not set. Put the key into that variable.")
        if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
            raise ConfigError("--judge-key-variable", self.variable, "has spaces or characters that no key has.")
        return key

    def facts(self) -> dict[str, Any]:
        """What the replies depend on, for the file of numbers."""
        names = ("model", "reply_tokens", "constrained", "request", "attempts")
        return {name: getattr(self, name) for name in names}


def add_judge_arguments(parser: argparse.ArgumentParser, optional: str = "") -> None:
    """Add the options for `judge_settings`, in an argument group; ``optional`` says what a judge is needed for."""
    group = parser.add_argument_group("judge", optional or "the language model that is asked, and what it may cost")
    for entry in fields(JudgeSettings):
        option = {name: value for name, value in entry.metadata.items() if name not in ("flag", "least")}
        flag, required = entry.metadata["flag"], entry.name == "model" and not optional
        group.add_argument(flag, dest=f"judge {entry.name}", default=argparse.SUPPRESS, required=required, **option)


def judge_settings(given: dict[str, Any]) -> JudgeSettings:
    """Take the settings of the judge out of parsed arguments. Raises ConfigError like `JudgeSettings`."""
    names = [entry.name for entry in fields(JudgeSettings) if f"judge {entry.name}" in given]
    return JudgeSettings(**{name: given.pop(f"judge {name}") for name in names})


def _check_url(url: str) -> None:
    hint = "is not an address such as http://localhost:8000/v1."
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        shown = url.rpartition("@")[2].partition("?")[0]  # without parts that may contain a key
        raise ConfigError("--judge-url", shown, hint) from None
    if "@" in parts.netloc or parts.query:
        # Not shown, because these parts may contain a key.
        more = "contains more than a host and a path. Pass keys in the environment (--judge-key-variable)."
        raise ConfigError("--judge-url", f"{parts.scheme}://...", more)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("--judge-url", url, hint)
