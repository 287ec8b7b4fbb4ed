"""The two HTTP protocols of judges: OpenAI's chat completions (vLLM and most providers) and Anthropic's messages.

A request's body is all that the cache's key is made of; nothing secret is in it.
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
    """The judge's text, and the tokens of question and reply together; None where the server does not say."""

    text: str
    tokens: int | None


class Protocol(ABC):
    """One way to put a question and to read the reply."""

    path: str

    @abstractmethod
    def headers(self, key: str | None) -> dict[str, str]:
        """Headers of every request."""

    @abstractmethod
    def body(self, settings: JudgeSettings, question: Question, attempt: int) -> Body:
        """The request's body; ``attempt`` counts from 1, and later ones carry a reminder of the form."""

    @abstractmethod
    def read(self, body: Any) -> Reply:
        """The reply in a response's body. Raises UnreadableReplyError."""


class OpenAIProtocol(Protocol):
    """``POST URL/chat/completions``."""

    path = "/chat/completions"

    def headers(self, key: str | None) -> dict[str, str]:
        """A bearer token, where there is a key."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def body(self, settings: JudgeSettings, question: Question, attempt: int) -> Body:
        """System and user turn; a regular expression for vLLM, where asked for."""
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
        """The first choice's text; no text, as of a refusal, is an empty one."""
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
        """The version, and the key, where there is one."""
        return {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})}

    def body(self, settings: JudgeSettings, question: Question, attempt: int) -> Body:
        """The instructions as system text, one user turn."""
        body: Body = {
            "model": settings.model,
            "system": question.instructions,
            "messages": [{"role": "user", "content": _material(question, attempt)}],
            "temperature": 0,
            "max_tokens": settings.reply_tokens,
        }
        return _changed(body, settings.request)

    def read(self, body: Any) -> Reply:
        """All blocks of text, one after the other; blocks of other kinds are not part of the answer."""
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
    """The body with the user's fields in place of its own; null leaves a field out."""
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
