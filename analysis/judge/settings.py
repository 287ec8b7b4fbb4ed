"""Settings of the judge: server, retries and budget, and the command-line options for them."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.json_text import parse_json

PROVIDER = "https://api.openai.com/v1"
KEY_VARIABLE = "OPENAI_API_KEY"
# Fields of the request that the user cannot replace.
_OURS = ("model", "messages", "stream")


@dataclass(frozen=True, kw_only=True)
class JudgeSettings:
    """Settings of a judge. Raises ConfigError for invalid values."""

    model: str
    """The model's name at the server."""
    cache: Path
    """The folder of replies."""
    url: str = PROVIDER
    """The base address of chat completions."""
    key_variable: str | None = None
    """The environment variable with the key, which must be set; None: `KEY_VARIABLE`, if it is set."""
    reply_tokens: int = 1024
    """The maximum number of tokens of a reply."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """Fields that replace or extend those of the request's body; None removes a field."""
    constrained: bool = False
    """Make vLLM constrain the reply to the form (`structured_outputs`); the judge then does not think first."""
    attempts: int = 3
    """The maximum number of times to ask a question if its replies are malformed."""
    tries: int = 6
    """The maximum number of times to send a request that the server does not answer."""
    timeout_seconds: float = 180.0
    """The timeout of a request."""
    concurrency: int = 8
    """The maximum number of concurrent requests."""
    most_requests: int | None = None
    """Limit on requests, not counting those sent again; 0: use only the cache; None: no limit."""
    most_tokens: int | None = None
    """Limit on tokens of questions and replies; None: no limit. Requests in flight at the limit are completed."""

    def __post_init__(self) -> None:
        _check_url(self.base_url)
        if not self.model:
            raise ConfigError("--judge-model", self.model, "must not be empty. Name the judge as its server knows it.")
        for option, value in self._counts().items():
            if value <= 0:
                raise ConfigError(option, value, "must be above 0.")
        for option, limit in (("--budget-requests", self.most_requests), ("--budget-tokens", self.most_tokens)):
            if limit is not None and limit < 0:
                raise ConfigError(option, limit, "must be at least 0.")
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

    def _counts(self) -> dict[str, float]:
        return {
            "--judge-reply-tokens": self.reply_tokens,
            "--judge-attempts": self.attempts,
            "--judge-tries": self.tries,
            "--judge-timeout": self.timeout_seconds,
            "--judge-concurrency": self.concurrency,
        }


def add_judge_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for `judge_settings`, in an argument group."""
    group = parser.add_argument_group("judge", "the language model that is asked, and what it may cost")
    group.add_argument("--judge-model", required=True, metavar="NAME", help="its name at the server")
    group.add_argument(
        "--judge-url", metavar="URL", default=PROVIDER, help="of a server of chat completions; default: %(default)s"
    )
    group.add_argument(
        "--judge-key-variable",
        metavar="NAME",
        help=f"environment variable with the key; default: {KEY_VARIABLE}, if it is set",
    )
    group.add_argument("--judge-reply-tokens", type=int, default=1024, metavar="N", help="longest reply")
    group.add_argument(
        "--judge-request",
        type=_json_object,
        default={},
        metavar="JSON",
        help='more fields of the request; null leaves one out: {"temperature": null, "reasoning_effort": "low"}',
    )
    group.add_argument(
        "--judge-constrained", action="store_true", help="vLLM only: hold replies to the form, without thinking first"
    )
    group.add_argument(
        "--judge-attempts", type=int, default=3, metavar="N", help="times to ask if replies are malformed"
    )
    group.add_argument("--judge-tries", type=int, default=6, metavar="N", help="times to send if the server fails")
    group.add_argument("--judge-timeout", type=float, default=180.0, metavar="SECONDS", help="for one request")
    group.add_argument("--judge-concurrency", type=int, default=8, metavar="N", help="requests at once")
    group.add_argument(
        "--cache", type=Path, default=Path("judge-cache"), metavar="FOLDER", help="of replies; default: %(default)s"
    )
    group.add_argument("--budget-requests", type=int, metavar="N", help="most requests to send; default: no limit")
    group.add_argument("--budget-tokens", type=int, metavar="N", help="stop after N tokens; default: no limit")


def judge_settings(arguments: argparse.Namespace) -> JudgeSettings:
    """The settings of the judge on the command line. Raises ConfigError like `JudgeSettings`."""
    return JudgeSettings(
        model=arguments.judge_model,
        cache=arguments.cache,
        url=arguments.judge_url,
        key_variable=arguments.judge_key_variable,
        reply_tokens=arguments.judge_reply_tokens,
        request=arguments.judge_request,
        constrained=arguments.judge_constrained,
        attempts=arguments.judge_attempts,
        tries=arguments.judge_tries,
        timeout_seconds=arguments.judge_timeout,
        concurrency=arguments.judge_concurrency,
        most_requests=arguments.budget_requests,
        most_tokens=arguments.budget_tokens,
    )


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not an object of fields")
    return value


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
