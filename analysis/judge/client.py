"""Ask the judge many questions concurrently, with deduplication and a cache of replies.

A question with a malformed reply is asked again with a reminder; if all replies are malformed, it has no answer. A
failed request is retried after a pause. A permanent error stops everything with a one-line message; requests in flight
are completed and cached, because they are paid for.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from tqdm import tqdm

from analysis.judge.budget import Budget
from analysis.judge.cache import ReplyCache
from analysis.judge.protocols import PROTOCOLS, Body, Reply, UnreadableReplyError
from analysis.judge.question import Question
from analysis.judge.retries import LONGEST_REQUESTED, backoff, is_worth_repeating, requested_pause
from analysis.judge.settings import JudgeSettings
from meds_openrlhf.config.errors import ConfigError

Answer = tuple[int, ...]
_LONGEST_MESSAGE = 300  # characters of a server's message in an error


@dataclass
class Tally:
    """Counts of cached replies, of repeated questions after malformed replies, and of questions left malformed."""

    cached: int = 0
    asked_again: int = 0
    malformed: int = 0


class JudgeClient:
    """A client for a judge. ``tally`` and ``budget`` count over all calls of `ask_all`."""

    def __init__(self, settings: JudgeSettings) -> None:
        self._settings = settings
        self._protocol = PROTOCOLS[settings.protocol]
        self._cache = ReplyCache(settings.cache)
        self._key = settings.read_key()
        self.budget = Budget(settings.most_requests, settings.most_tokens)
        self.tally = Tally()

    def ask_all(self, questions: Sequence[Question]) -> list[Answer | None]:
        """The numbers in the reply to each question, None if all attempts were malformed.

        Raises ConfigError if the judge refuses or does not answer, or if the budget is used up.
        """
        answers = asyncio.run(self._ask_all(list(dict.fromkeys(questions))))
        return [answers[question] for question in questions]

    async def _ask_all(self, questions: list[Question]) -> dict[Question, Answer | None]:
        """Answers by question. The first error stops all requests that are not in flight yet."""
        self._stopping = asyncio.Event()
        self._turns = asyncio.Semaphore(self._settings.concurrency)
        progress = tqdm(total=len(questions), desc="judge", disable=None)
        headers = self._protocol.headers(self._key)
        async with httpx.AsyncClient(headers=headers, timeout=self._settings.timeout_seconds) as http:
            tasks = {question: asyncio.create_task(self._ask(http, question)) for question in questions}
            for task in tasks.values():
                task.add_done_callback(lambda _: progress.update())
            errors = await self._finish(list(tasks.values()))
        progress.close()
        if errors:
            raise errors[0]
        return {question: task.result() for question, task in tasks.items()}

    async def _finish(self, tasks: list[asyncio.Task[Answer | None]]) -> list[BaseException]:
        """Wait for all tasks and return their errors, with the errors that stopped the others first."""
        if not tasks:
            return []
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:  # interrupted from the keyboard
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        errors = [error for error in (task.exception() for task in tasks) if error]
        return sorted(errors, key=lambda error: isinstance(error, _StoppedError))

    async def _ask(self, http: httpx.AsyncClient, question: Question) -> Answer | None:
        for attempt in range(1, self._settings.attempts + 1):
            body = self._protocol.body(self._settings, question, attempt)
            answer = question.parse((await self._reply(http, body)).text)
            if answer is not None:
                return answer
            self.tally.asked_again += attempt < self._settings.attempts
        self.tally.malformed += 1
        return None

    async def _reply(self, http: httpx.AsyncClient, body: Body) -> Reply:
        """The reply to a request, from the cache or the server."""
        async with self._turns:
            try:
                reply = self._cache.read(self._settings.protocol, body)
                if reply is not None:
                    self.tally.cached += 1
                    return reply
                reply = await self._fetch(http, body)
                self._cache.write(self._settings.protocol, body, reply)
                self.budget.add_tokens(reply.tokens)
            except Exception:
                self._stopping.set()  # before the semaphore lets the next request in
                raise
            return reply

    async def _fetch(self, http: httpx.AsyncClient, body: Body) -> Reply:
        """Send the request until the server answers. Raises ConfigError after the maximum number of tries."""
        failure = _Failure("")
        for attempt in range(1, self._settings.tries + 1):
            if self._stopping.is_set():
                raise _StoppedError
            self.budget.take_request()
            outcome = await self._send(http, body)
            if isinstance(outcome, Reply):
                return outcome
            failure = outcome
            if failure.pause > LONGEST_REQUESTED:
                hint = f"asks for a pause of {failure.pause:.0f} s ({failure.reason}); come back later"
                raise ConfigError("--judge-url", self._settings.base_url, hint)
            if attempt < self._settings.tries:
                await self._wait(max(failure.pause, backoff(attempt, self._settings.backoff_seconds)))
        hint = f"does not answer, tried {self._settings.tries} times; the last time: {failure.reason}"
        raise ConfigError("--judge-url", self._settings.base_url, hint)

    async def _send(self, http: httpx.AsyncClient, body: Body) -> Reply | _Failure:
        """Send the request once. Raises ConfigError if a retry cannot succeed."""
        sending = http.post(self._settings.base_url + self._protocol.path, json=body)
        try:
            response = await asyncio.wait_for(sending, self._settings.timeout_seconds)
        except (asyncio.TimeoutError, httpx.TimeoutException):
            return _Failure(f"no answer within {self._settings.timeout_seconds:g} s")
        except httpx.TransportError as error:
            return _Failure(self._readable(str(error) or type(error).__name__))
        if is_worth_repeating(response.status_code):
            reason = f"status {response.status_code}: {self._readable(_words(response))}"
            return _Failure(reason, requested_pause(response.headers))
        if response.status_code != 200:
            raise self._refusal(response)
        try:
            return self._protocol.read(response.json())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            return _Failure(f"a reply that is not JSON ({error})")
        except UnreadableReplyError as error:
            return _Failure(f"a reply that {error}")

    def _refusal(self, response: httpx.Response) -> ConfigError:
        """The error for a permanent status."""
        status, words, settings = response.status_code, self._readable(_words(response)), self._settings
        if status == 401:  # no server message here: it may quote a part of the key
            hint = (
                "holds a key that the server refuses (401)" if self._key else "is not set, and the server wants a key"
            )
            return ConfigError("--judge-key-variable", settings.variable, hint)
        if status == 403:
            return ConfigError("--judge-model", settings.model, f"is not open to this key (403): {words}")
        if status == 404 or 300 <= status < 400:
            hint = f"has no {self._protocol.path} for the model {settings.model!r} ({status}): {words}"
            return ConfigError("--judge-url", settings.base_url, hint)
        hint = (
            f"gets requests that its server refuses ({status}): {words}; --response-characters makes them shorter, "
            "--judge-request changes their fields"
        )
        return ConfigError("--judge-model", settings.model, hint)

    async def _wait(self, seconds: float) -> None:
        """Wait for ``seconds``, or until the client is stopping."""
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except asyncio.TimeoutError:
            return

    def _readable(self, words: str) -> str:
        """A server's message on one line, shortened, with words that contain the key or a part of it replaced."""
        if self._key:
            parts = {re.escape(part) for part in (self._key, self._key[:8], self._key[-6:]) if len(part) > 3}
            words = re.sub(rf"\S*(?:{'|'.join(sorted(parts))})\S*", "[key]", words) if parts else words
        words = " ".join(words.split())
        return words if len(words) <= _LONGEST_MESSAGE else f"{words[:_LONGEST_MESSAGE]}..."


@dataclass(frozen=True)
class _Failure:
    """The reason to retry a request, and the pause that the server requests, in seconds."""

    reason: str
    pause: float = 0.0


class _StoppedError(Exception):
    """The request was not sent, because another request has failed permanently."""


def _words(response: httpx.Response) -> str:
    """The server's error message: the field that both protocols use for it, or else the whole body."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError, IndexError):
        return response.text


def judged_by(settings: JudgeSettings) -> dict[str, Any]:
    """The judge's settings, for the JSON file of numbers."""
    return {
        "model": settings.model,
        "protocol": settings.protocol,
        "reply_tokens": settings.reply_tokens,
        "constrained": settings.constrained,
        "request": dict(settings.request),
        "attempts": settings.attempts,
    }


def cost_line(client: JudgeClient, settings: JudgeSettings, shortened: int) -> str:
    """A line for the screen: requests and tokens, malformed replies, and shortened texts."""
    tally, budget = client.tally, client.budget
    return (
        f"Judge {settings.model}: {budget.requests} requests ({budget.tokens} tokens), {tally.cached} replies from the "
        f"cache; asked again for the form {tally.asked_again} times, {tally.malformed} questions left malformed. "
        f"{shortened} responses were shown without their middle."
    )
