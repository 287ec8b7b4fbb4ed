"""A small SwanLab for tests: what the real client says to it is kept, and it can refuse or lose what it is sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.tracking.written_run import KEY

LOGIN = {"sid": "sid", "expiredAt": "2999-01-01T00:00:00.000Z", "userInfo": {"username": "someone"}}
PROJECT = {
    "cuid": "P", "name": "fruit", "version": 1, "path": "/someone/fruit", "group": {"username": "someone"},
    "_count": {"experiments": 0},
}  # fmt: skip


class SwanlabServer:
    """Keeps what it is told; metrics only while their ``status`` is 200."""

    def __init__(self) -> None:
        self.status = 200
        self.scalars: list[tuple[str, int, Any]] = []  # name, step and value
        self.media: list[tuple[str, int]] = []
        self.experiments: list[dict[str, Any]] = []  # each request to open one
        self.config: dict[str, Any] = {}
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"state": self}))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}"

    def points(self, name: str) -> list[tuple[int, Any]]:
        return [(step, value) for key, step, value in self.scalars if key == name]

    def answer(self, method: str, path: str, key: str | None, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and content for a request."""
        if path == "/login/api_key":
            return (200, LOGIN) if key == KEY else (401, {})
        if path.endswith("/experiment"):
            self.experiments.append(body)
            content = {"cuid": body["cuid"], "slug": body["cuid"], "name": body["name"], "createdAt": "2026-01-01"}
            return 201 if len(self.experiments) == 1 else 200, content
        if path.startswith("/house/metrics/summaries"):
            last: dict[str, int] = {}
            for name, step, _ in self.scalars:
                last[name] = max(step, last.get(name, -1))
            media = {name: step for name, step in self.media}
            kinds = {"scalar": last, "media": media}
            return 200, {kind: [{"key": k, "step": s} for k, s in steps.items()] for kind, steps in kinds.items()}
        if path == "/house/metrics":
            if self.status != 200:
                return self.status, {"message": "not now"}
            if body["type"] == "scalar":
                self.scalars += [(one["key"], one["index"], one["data"]) for one in body["metrics"]]
            if body["type"] == "media":
                self.media += [(one["key"], one["index"]) for one in body["metrics"]]
        if path == "/resources/presigned/put":
            return 200, {"urls": [f"{self.url}/store" for _ in body["paths"]]}
        if path.endswith("/profile"):
            self.config.update(body.get("config", {}))
        return 200, PROJECT if method == "GET" else {}


class _Handler(BaseHTTPRequestHandler):
    state: SwanlabServer

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        is_json = "json" in (self.headers.get("Content-Type") or "")
        path = self.path.removeprefix("/api").partition("?")[0]
        key = self.headers.get("authorization")
        status, content = self.state.answer(self.command, path, key, json.loads(body) if is_json and body else {})
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_POST = do_PUT = do_GET

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def swanlab_server() -> Iterator[SwanlabServer]:
    """A server that runs for the block."""
    server = SwanlabServer()
    threading.Thread(target=server.http.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()
