"""The two HTTP protocols of judges: OpenAI's chat completions (vLLM and most providers) and Anthropic's messages.

The cache's key is made of the protocol's name and the request's body, which contains no secrets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.judge.question import Question
from analysis.judge.settings import JudgeSettings

Body = dict[str, Any]


class UnreadableReplyError(ValueError):
    """A reply with status 200 that does not have the protocol's form."""


@dataclass(frozen=True)
class Reply:
    """The judge's text, and the total tokens of question and reply, None if the server does not report them."""

    text: str
    tokens: int | None


class Protocol(ABC):
    """A way to send a question and to read the reply."""

    path: str

    @abstractmethod
    def headers(self, key: str | None) -> dict[str, str]:
        """Headers of every request."""

    @abstractmethod
    def body(self, settings: JudgeSettings, question: Question, attempt: int) -> Body:
        """The request's body; ``attempt`` counts from 1, and later attempts add a reminder of the form."""

    @abstractmethod
    def read(self, body: Any) -> Reply:
        """The reply in a response's body. Raises UnreadableReplyError if the body does not have the protocol's form."""


class OpenAIProtocol(Protocol):
    """``POST URL/chat/completions``."""

    path = "/chat/completions"

    def headers(self, key: str | None) -> dict[str, str]:
        """A bearer token if there is a key."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def body(self, settings: JudgeSettings, question: Question, attempt: int) -> Body:
        """A system and a user turn, and a regular expression for vLLM if ``constrained`` is set."""
        turns = [("system", question.instructions), ("user", _material(question, attempt))]
        body: Body = {
            "model": settings.model,
            "messages": [{"role": role, "content": content} for role, content in turns],
            "temperature": 0,
            "max_tokens": settings.reply_tokens,
        }
        if settings.constrained:
            body["structured_outputs"] = {"regex": question.pattern}
        return _changed(body, settings.request)

    def read(self, body: Any) -> Reply:
        """The text of the first choice, empty if there is no text, as in a refusal."""
        try:
            text = body["choices"][0]["message"]["content"]
            usage = body.get("usage")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise UnreadableReplyError("has no choices[0].message.content") from error
        return Reply(_text(text), _tokens(usage, "prompt_tokens", "completion_tokens"))


class AnthropicProtocol(Protocol):
    """``POST URL/messages``."""

    path = "/messages"

    def headers(self, key: str | None) -> dict[str, str]:
        """The API version, and the key if it is set."""
        return {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})}

    def body(self, settings: JudgeSettings, question: Question, attempt: int) -> Body:
        """The instructions as system text, and a user turn."""
        body: Body = {
            "model": settings.model,
            "system": question.instructions,
            "messages": [{"role": "user", "content": _material(question, attempt)}],
            "temperature": 0,
            "max_tokens": settings.reply_tokens,
        }
        return _changed(body, settings.request)

    def read(self, body: Any) -> Reply:
        """The concatenated text blocks; other blocks are not part of the answer."""
        try:
            text = "".join(_text(block["text"]) for block in body["content"] if block["type"] == "text")
            usage = body.get("usage")
        except (KeyError, TypeError, AttributeError) as error:
            raise UnreadableReplyError("has no blocks of text in content") from error
        return Reply(text, _tokens(usage, "input_tokens", "output_tokens"))


PROTOCOLS: dict[str, Protocol] = {"openai": OpenAIProtocol(), "anthropic": AnthropicProtocol()}


def _material(question: Question, attempt: int) -> str:
    return question.material if attempt == 1 else f"{question.material}\n\n{question.reminder(attempt)}"


def _changed(body: Body, changes: Mapping[str, Any]) -> Body:
    """The body with the user's fields merged in; null removes a field."""
    return {name: value for name, value in {**body, **changes}.items() if value is not None}


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UnreadableReplyError(f"has {type(value).__name__} where its text should be")
    return value


def _tokens(usage: Any, *names: str) -> int | None:
    counts = [usage.get(name) for name in names] if isinstance(usage, dict) else []
    known = [count for count in counts if isinstance(count, int)]
    return sum(known) if len(known) == len(names) else None
