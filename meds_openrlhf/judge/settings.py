"""Settings of the judge, each an option of the command line: server, retries and budget."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from meds_openrlhf.config.credentials import credentials_in
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.json_text import parse_json
from meds_openrlhf.options import above_0, add_options, option, positive

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


@dataclass(frozen=True, kw_only=True)
class JudgeSettings:
    """Settings of a judge; the help of each option explains it. Raises ConfigError for invalid values."""

    model: Annotated[str, option("model name on the server", "NAME")]
    url: Annotated[str, option("URL of an OpenAI-compatible server", "URL")] = PROVIDER
    key_variable: Annotated[
        str | None, option(f"environment variable with the API key (default: {KEY_VARIABLE}, if set)", "NAME")
    ] = None
    reply_tokens: Annotated[int, option("maximum tokens of a reply", "N", type=positive)] = 1024
    request: Annotated[
        Mapping[str, Any],
        option(
            'fields to add to the request; null removes one: {"temperature": null, "reasoning_effort": "low"}',
            "JSON",
            type=_json_object,
        ),
    ] = field(default_factory=dict)
    constrained: Annotated[
        bool, option("vLLM only: constrain replies to the format; disables reasoning", action="store_true")
    ] = False
    attempts: Annotated[int, option("maximum attempts per question if replies are malformed", "N", type=positive)] = 3
    tries: Annotated[int, option("maximum times that a request is sent if the server fails", "N", type=positive)] = 6
    timeout: Annotated[float, option("timeout of a whole reply", "SECONDS", type=above_0)] = 180.0
    concurrency: Annotated[int, option("maximum concurrent requests", "N", type=positive)] = 8
    cache: Annotated[Path, option("folder for the replies", "FOLDER", flag="--cache", type=Path)] = Path("judge-cache")
    most_requests: Annotated[
        int | None,
        option("maximum requests; 0 uses only the cache (default: no limit)", "N", flag="--budget-requests", type=int),
    ] = None

    def __post_init__(self) -> None:
        _check_url(self.base_url)
        for name in self.request:
            if name in _OURS:
                raise ConfigError("--judge-request", name, "is part of the question and cannot be replaced.")
        for name in credentials_in(self.request):
            hint = "is a credential, which the cache of replies would hold. The key is read from --judge-key-variable."
            raise ConfigError("--judge-request", name, hint)

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
            hint = "has spaces or other characters that are not valid in a key."
            raise ConfigError("--judge-key-variable", self.variable, hint)
        return key

    def facts(self) -> dict[str, Any]:
        """What the replies depend on, for the file of numbers."""
        names = ("model", "reply_tokens", "constrained", "request", "attempts")
        return {name: getattr(self, name) for name in names}


def add_judge_options(parser: argparse.ArgumentParser, needed_for: str = "") -> None:
    """Add the options for `judge_settings`, in an argument group that says what a judge is ``needed_for``."""
    group = parser.add_argument_group("judge", needed_for or "the language model that judges, and limits on its cost")
    add_options(group, JudgeSettings, "judge_")


def judge_settings(given: dict[str, Any]) -> JudgeSettings:
    """Take the settings of the judge out of parsed arguments. Raises ConfigError like `JudgeSettings`."""
    names = [name for name in given if name.startswith("judge_")]
    if "judge_model" not in names:
        raise ConfigError("--judge-model", None, "must be given: the model name on the server.")
    return JudgeSettings(**{name.removeprefix("judge_"): given.pop(name) for name in names})


def _check_url(url: str) -> None:
    """Raise ConfigError, without the address, which may contain a key, unless it is that of a server alone."""
    hint = "must be an address such as http://localhost:8000/v1. Pass keys in the environment (--judge-key-variable)."
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ConfigError("--judge-url", None, hint) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
        raise ConfigError("--judge-url", None, hint)
