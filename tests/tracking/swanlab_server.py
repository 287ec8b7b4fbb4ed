"""A small SwanLab for tests: what the real client says to it is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.http_server import JsonHandler, serving
from tests.tracking.written_run import KEY

LOGIN = {"sid": "sid", "expiredAt": "2999-01-01T00:00:00.000Z", "userInfo": {"username": "someone"}}
PROJECT = {
    "cuid": "P", "name": "fruit", "version": 1, "path": "/someone/fruit", "group": {"username": "someone"},
    "_count": {"experiments": 0},
}  # fmt: skip


class SwanlabServer:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.points: dict[str, list[tuple[int, Any]]] = {}  # step and value, by name
        self.experiments: list[dict[str, Any]] = []  # each request to open one
        self.config: dict[str, Any] = {}
        self.url = ""

    def answer(self, method: str, path: str, key: str | None, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and content for a request."""
        if path == "/login/api_key":
            return (200, LOGIN) if key == KEY else (401, {})
        if path.endswith("/experiment"):
            self.experiments.append(body)
            content = {"cuid": body["cuid"], "slug": body["cuid"], "name": body["name"], "createdAt": "2026-01-01"}
            return 201 if len(self.experiments) == 1 else 200, content
        if path.startswith("/house/metrics/summaries"):
            last = {name: {"key": name, "step": points[-1][0]} for name, points in self.points.items()}
            media = [last.pop("train/biggest_clusters")] if "train/biggest_clusters" in last else []
            return 200, {"scalar": list(last.values()), "media": media}
        if path == "/house/metrics":
            for one in body["metrics"] if body["type"] in ("scalar", "media") else ():
                self.points.setdefault(one["key"], []).append((one["index"], one.get("data")))
        if path == "/resources/presigned/put":
            return 200, {"urls": [f"{self.url}/store" for _ in body["paths"]]}
        if path.endswith("/profile"):
            self.config.update(body.get("config", {}))
        return 200, PROJECT if method == "GET" else {}


class _Handler(JsonHandler):
    state: SwanlabServer

    def do_GET(self) -> None:
        body = self.body()
        is_json = "json" in (self.headers.get("Content-Type") or "")
        path = self.path.removeprefix("/api").partition("?")[0]
        key = self.headers.get("authorization")
        self.say(*self.state.answer(self.command, path, key, json.loads(body) if is_json and body else {}))

    do_POST = do_PUT = do_GET


@contextmanager
def swanlab_server() -> Iterator[SwanlabServer]:
    """A server that runs for the block."""
    state = SwanlabServer()
    with serving(_Handler, state=state) as state.url:
        yield state
