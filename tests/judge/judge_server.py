"""A real HTTP server on this machine that answers as it is told, in OpenAI's words."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Response:
    """What the server sends: a judge's words, or with ``raw`` any body at all."""

    text: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    seconds: float = 0.0  # before it is sent
    held: threading.Event | None = None  # it is not sent before this is set, or for a minute
    tokens: bool = True


@dataclass(frozen=True)
class Request:
    """What the server got."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def material(self) -> str:
        return self.body["messages"][-1]["content"]


Script = Callable[[Request, int], Response]


@dataclass
class Judge:
    """A running server. ``script`` is asked with each request and how many came before it."""

    url: str
    script: Script
    requests: list[Request] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    closing: threading.Event = field(default_factory=threading.Event)

    def answer(self, request: Request) -> Response:
        with self.lock:
            self.requests.append(request)
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            response = self.script(request, len(self.requests) - 1)
        if response.held is not None:
            response.held.wait(60)
        self.closing.wait(response.seconds)
        with self.lock:
            self.under_way -= 1
        return response


def options(tmp_path: Path, judge: Judge, *more: str) -> list[str]:
    """A script's options to ask this judge, and to write below ``tmp_path``."""
    line = ["--judge-url", judge.url, "--judge-model", "m", "--cache", str(tmp_path / "cache")]
    return [*line, "--figure", str(tmp_path / "f.png"), "--json", str(tmp_path / "n.json"), *more]


def body_of(response: Response) -> bytes:
    """The response's body."""
    if response.raw is not None:
        return response.raw
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    body = {"choices": [{"message": {"role": "assistant", "content": response.text}}]}
    return json.dumps({**body, **({"usage": usage} if response.tokens else {})}).encode()


@contextmanager
def judge_server(script: Script) -> Iterator[Judge]:
    """A server that follows the script until the end of the block."""
    judge = Judge("", script)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            request = Request(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            response = judge.answer(request)
            with suppress(BrokenPipeError, ConnectionResetError):  # nobody waits for it any more
                self.send(response, body_of(response))

        def send(self, response: Response, content: bytes) -> None:
            self.send_response(response.status)
            headers = {"Content-Type": "application/json", "Content-Length": str(len(content)), **response.headers}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # so that closing waits for those that still answer: none outlives its test
    judge.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield judge
    finally:
        judge.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
