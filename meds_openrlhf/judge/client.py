"""Ask the judge many questions concurrently, with deduplication and a cache of replies.

The judge is any server with OpenAI's chat completions; the `openai` package retries failed requests. A question with a
malformed reply is asked again with a reminder; if all replies are malformed, it has no answer. A permanent error stops
everything with a one-line message; requests in flight are completed and cached, because they are paid for.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, overload

import openai
from tqdm import tqdm

from meds_openrlhf.config.credentials import hidden
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import MIB, MOST_SETTINGS, UnusableFileError, read_file, write_atomically
from meds_openrlhf.json_text import parse_json
from meds_openrlhf.judge.question import Question, WordsQuestion, instructions
from meds_openrlhf.judge.settings import JudgeSettings

# The HTTP library of this version of `openai`, which handles its errors alone: httpx, or its successor.
httpx: Any = import_module(openai.DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0])
Answer = tuple[int, ...]
Words = tuple[str, ...]
MOST_REPLY = 4 * MIB  # in the cache, a character may take six bytes
_LONGEST_MESSAGE = 300  # characters of a server's message in an error
Body = dict[str, Any]  # of a request; it contains no secrets


@dataclass(frozen=True)
class Reply:
    """The judge's text, and the total tokens of question and reply, None if the server does not report them."""

    text: str
    tokens: int | None


class ReplyCache:
    """A cache of replies below ``folder``, a file per reply, so that no request is paid for twice.

    A file's name is the hash of the whole request body: model, texts and sampling settings. The address is not
    included, because the port of a local server changes with every start. Processes may share the folder: writes are
    atomic, and equal requests share a file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, body: Body) -> Path:
        """The path of the reply to this request, whether or not it exists."""
        request = json.dumps({"protocol": "openai", "body": body}, sort_keys=True)  # as in caches that exist
        name = hashlib.sha256(request.encode()).hexdigest()
        return self._folder / name[:2] / f"{name}.json"

    def read(self, body: Body) -> Reply | None:
        """The reply, or None if there is none yet. Raises ConfigError if the file does not contain a reply."""
        path = self.path(body)
        try:
            entry = parse_json(read_file(path, MOST_SETTINGS))
            text, tokens = entry["text"], entry["tokens"]
            if not isinstance(text, str) or type(tokens) not in (int, type(None)):
                raise TypeError(entry)
            return Reply(text, tokens)
        except FileNotFoundError:
            return None
        except (UnusableFileError, ValueError, KeyError, TypeError) as error:
            raise ConfigError("--cache", str(path), "is not the reply of a judge. Delete that file.") from error

    def write(self, body: Body, reply: Reply) -> None:
        """Store the reply, together with its request for inspection."""
        entry = {"text": reply.text, "tokens": reply.tokens, "request": body}
        # In ASCII, because a reply may contain a lone surrogate, which UTF-8 cannot encode.
        write_atomically(self.path(body), json.dumps(entry, indent=1) + "\n")


@dataclass
class Tally:
    """What the questions have cost, and how many replies were malformed."""

    requests: int = 0  # without those that were sent again
    tokens: int = 0
    cached: int = 0
    asked_again: int = 0  # after a malformed reply
    malformed: int = 0  # questions left without an answer


class BoundedClient(openai.DefaultAsyncHttpxClient):
    """Reads each reply whole, within ``seconds`` and `MOST_REPLY` bytes: its own timeout is of single reads.

    What it raises, the `openai` package retries. To another address than the user named, texts of the run must not go.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(follow_redirects=False, headers={"Accept-Encoding": "identity"})
        self._seconds = seconds

    async def send(self, request: Any, **options: Any) -> Any:
        """Send the request and return the response with its content."""
        try:
            return await asyncio.wait_for(self._whole(request, options), self._seconds)
        except (asyncio.TimeoutError, TimeoutError):
            raise httpx.ReadTimeout(f"no whole reply within {self._seconds:g} s", request=request) from None

    async def _whole(self, request: Any, options: dict[str, Any]) -> Any:
        response = await super().send(request, **{**options, "stream": True})
        try:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise httpx.ReadError("the reply is compressed, which was not asked for", request=request)
            content = bytearray()
            async for part in response.aiter_raw():
                content += part
                if len(content) > MOST_REPLY:
                    raise httpx.ReadError(f"the reply has more than {MOST_REPLY / MIB:.0f} MiB", request=request)
        finally:
            await response.aclose()
        kept = [(name, value) for name, value in response.headers.raw if name.lower() != b"transfer-encoding"]
        return httpx.Response(response.status_code, headers=kept, content=bytes(content), request=request)


class JudgeClient:
    """A client for a judge. ``tally`` counts over all calls of `ask_all`."""

    def __init__(self, settings: JudgeSettings) -> None:
        self.settings = settings
        self.tally = Tally()
        self._cache = ReplyCache(settings.cache)
        self._key = settings.read_key()

    def cost_line(self) -> str:
        """Requests and tokens, and malformed replies, in words."""
        tally = self.tally
        return (
            f"Judge {self.settings.model}: {tally.requests} requests ({tally.tokens} tokens), {tally.cached} replies "
            f"from the cache; {tally.asked_again} malformed replies were asked for again, {tally.malformed} questions "
            "stayed malformed."
        )

    @overload
    def ask_all(self, questions: Sequence[Question]) -> list[Answer | None]: ...
    @overload
    def ask_all(self, questions: Sequence[WordsQuestion]) -> list[Words | None]: ...
    def ask_all(self, questions: Sequence[Any]) -> list[Any]:
        """The numbers or words in the reply to each question, None if all attempts were malformed.

        Raises ConfigError if the judge refuses or does not answer, or if the budget is used up.
        """
        answers = asyncio.run(self._ask_all(list(dict.fromkeys(questions))))
        return [answers[question] for question in questions]

    async def _ask_all(self, questions: list[Any]) -> dict[Any, Any]:
        """Answers by question. The first error stops all requests that are not in flight yet."""
        self._error: Exception | None = None
        self._turns = asyncio.Semaphore(self.settings.concurrency)
        server = openai.AsyncOpenAI(
            base_url=self.settings.base_url,
            api_key=self._key or "none",  # a server that needs no key ignores it
            timeout=self.settings.timeout,
            max_retries=self.settings.tries - 1,
            http_client=BoundedClient(self.settings.timeout),
        )
        async with server:
            with tqdm(total=len(questions), desc="judge", disable=None) as progress:
                answers = await asyncio.gather(*(self._ask(server, question, progress) for question in questions))
        if self._error is not None:
            raise self._error
        return dict(zip(questions, answers))

    async def _ask(self, server: openai.AsyncOpenAI, question: Question | WordsQuestion, progress: Any) -> Any:
        """The answer to a question; None also if there is an error, which is kept."""
        for attempt in range(1, self.settings.attempts + 1):
            reply = await self._reply(server, _body(self.settings, question, attempt))
            if reply is None:
                return None
            answer = question.parse(reply.text)
            if answer is not None:
                progress.update()
                return answer
            self.tally.asked_again += attempt < self.settings.attempts
        self.tally.malformed += 1
        progress.update()
        return None

    async def _reply(self, server: openai.AsyncOpenAI, body: Body) -> Reply | None:
        """The reply to a request, from the cache or the server; None after an error."""
        async with self._turns:
            if self._error is not None:
                return None
            try:
                reply = self._cache.read(body)
                if reply is not None:
                    self.tally.cached += 1
                    return reply
                self._take_request()
                reply = await self._send(server, body)
                self._cache.write(body, reply)
                self.tally.tokens += reply.tokens or 0
                return reply
            except Exception as error:  # of any kind: it stops the other questions, and is raised at the end
                self._error = self._error or error
                return None

    def _take_request(self) -> None:
        """Count a request before it is sent. Raises ConfigError if the budget is used up."""
        most = self.settings.most_requests
        if most is not None and self.tally.requests >= most:
            hint = "is used up. All replies are kept: raise it and run the command again."
            raise ConfigError("--budget-requests", most, hint)
        self.tally.requests += 1

    async def _send(self, server: openai.AsyncOpenAI, body: Body) -> Reply:
        more = {name: value for name, value in body.items() if name not in ("model", "messages")}
        try:
            completion = await server.chat.completions.create(
                model=body["model"], messages=body["messages"], extra_body=more
            )
        except openai.APIStatusError as error:
            raise self._refusal(error) from None
        except (openai.APIError, ValueError, RecursionError) as error:  # no connection, no answer in time, or no JSON
            reason = self._readable(f"{error} {error.__cause__ or ''}")
            hint = f"failed {self.settings.tries} times, the last time with: {reason}"
            raise ConfigError("--judge-url", self.settings.base_url, hint) from None
        try:
            usage, text = completion.usage, completion.choices[0].message.content or ""
            if not isinstance(text, str):
                raise TypeError(text)
            counts = () if usage is None else (usage.prompt_tokens, usage.completion_tokens)
            return Reply(text, sum(counts) if counts and all(type(count) is int for count in counts) else None)
        except (AttributeError, IndexError, TypeError):
            hint = "replies without choices[0].message.content. Name an OpenAI-compatible server."
            raise ConfigError("--judge-url", self.settings.base_url, hint) from None

    def _refusal(self, error: openai.APIStatusError) -> ConfigError:
        status, words, settings = error.status_code, self._readable(_words(error)), self.settings
        if status == 401:  # no server message here: it may quote a part of the key
            hint = "has a key that the server refuses (401)." if self._key else "is not set. The server needs a key."
            return ConfigError("--judge-key-variable", settings.variable, hint)
        if status == 403:
            return ConfigError("--judge-model", settings.model, f"is not available to this key (403): {words}")
        if status == 404 or 300 <= status < 400:
            hint = f"has no /chat/completions for the model {settings.model!r} ({status}): {words}"
            return ConfigError("--judge-url", settings.base_url, hint)
        if status in (408, 409, 429) or status >= 500:
            hint = f"failed {settings.tries} times, the last time with status {status}: {words}"
            return ConfigError("--judge-url", settings.base_url, hint)
        hint = (
            f"the server refuses a request ({status}): {words}. Change the fields of requests with --judge-request; "
            "analyses also shorten them with --response-characters."
        )
        return ConfigError("--judge-model", settings.model, hint)

    def _readable(self, words: str) -> str:
        """A server's message on one line, shortened, with words that contain the key or a part of it replaced."""
        key = self._key or ""
        parts = [key[start : start + 6] for start in range(len(key) - 5)] or [key]
        shown = ["[key]" if key and any(part in word for part in parts) else word for word in words.split()]
        words = hidden(" ".join(shown))
        return words if len(words) <= _LONGEST_MESSAGE else f"{words[:_LONGEST_MESSAGE]}..."


def _body(settings: JudgeSettings, question: Question | WordsQuestion, attempt: int) -> Body:
    """The request; ``attempt`` counts from 1, and later attempts add a reminder of the form."""
    reminder = f"\n\nAttempt {attempt}: the reply before did not end with the form asked for, which is\n{question.form}"
    turns = [("system", instructions(question)), ("user", question.material + (reminder if attempt > 1 else ""))]
    body = {
        "model": settings.model,
        "messages": [{"role": role, "content": content} for role, content in turns],
        "temperature": 0,
        "max_tokens": settings.reply_tokens,
        **({"structured_outputs": {"regex": question.pattern}} if settings.constrained else {}),
        **settings.request,
    }
    return {name: value for name, value in body.items() if value is not None}


def _words(error: openai.APIStatusError) -> str:
    """The server's error message, or else the whole body."""
    message = error.body.get("message") if isinstance(error.body, dict) else None
    return str(message or error.response.text)
