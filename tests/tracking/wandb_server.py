"""A small W&B for tests: what the real client says to it is kept, and it can hang or refuse."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.http_server import JsonHandler, serving


class WandbServer:
    """Keeps what it is told; ``behavior`` is "answers", "hangs" or "refuses", and may change at any time."""

    def __init__(self) -> None:
        self.behavior = "answers"
        self.history: dict[int, dict[str, Any]] = {}  # by the offset of the line
        self.summary: dict[str, Any] = {}
        self.runs: list[dict[str, Any]] = []  # the variables of each UpsertBucket
        self.let_go = threading.Event()
        self.url = ""

    def points(self, name: str) -> list[Any]:
        """The values of one metric, in the order in which they are kept."""
        lines = [self.history[offset] for offset in sorted(self.history)]
        return [line[name] for line in lines if name in line]

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        operation = query.split("(")[0].split("{")[0].split()[-1]
        run = self.runs[-1]["name"] if self.runs else None
        project = {"id": "P", "name": "p", "entity": {"id": "E", "name": "someone"}}
        bucket = {
            "id": "B", "name": run, "displayName": run, "description": "", "config": "{}", "sweepName": None,
            "project": project, "historyLineCount": len(self.history), "summaryMetrics": json.dumps(self.summary),
            "logLineCount": 0, "eventsLineCount": 0, "eventsTail": "[]", "tags": [], "notes": None,
            "historyTail": json.dumps([json.dumps(self.history[max(self.history)])] if self.history else []),
            "wandbConfig": json.dumps({"t": 1}),
        }  # fmt: skip
        if operation == "Viewer":
            return {"viewer": {"id": "V", "entity": "someone", "username": "someone", "email": "", "flags": "{}",
                               "teams": {"edges": []}}}  # fmt: skip
        if operation == "ServerFeaturesQuery":
            return {"serverInfo": {"features": []}}
        if operation == "RunResumeStatus":
            return {"model": {**project, "bucket": bucket if self.runs else None}}
        if operation == "UpsertBucket":
            self.runs.append(variables)
            return {"upsertBucket": {"bucket": {**bucket, "name": variables["name"] or run}, "inserted": not run}}
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "B", "uploadHeaders": [], "files": files}}
        if operation == "CreateArtifact":  # of a table
            return {"createArtifact": {"artifact": {"id": "A", "state": "COMMITTED", "artifactSequence": None}}}
        return {"project": None}  # nothing of that name is there yet

    def stream(self, content: dict[str, Any]) -> None:
        for name, part in (content.get("files") or {}).items():
            lines = [json.loads(line) for line in part["content"]]
            if name == "wandb-history.jsonl":
                self.history.update(enumerate(lines, start=part["offset"]))
            if name == "wandb-summary.json":
                self.summary = lines[-1]


class _Handler(JsonHandler):
    state: WandbServer

    def do_POST(self) -> None:
        body = self.body()
        if self.state.behavior == "hangs":
            self.state.let_go.wait()
            self.close_connection = True
        elif self.state.behavior == "refuses":
            self.say(401, {"errors": [{"message": "bad key"}]})
        elif self.path.endswith("/graphql"):
            asked = json.loads(body)
            self.say(200, {"data": self.state.answer(asked["query"], asked.get("variables") or {})})
        else:
            self.state.stream(json.loads(body))
            self.say(200, {"exitcode": None, "limits": {}})

    do_GET = do_POST

    def do_PUT(self) -> None:
        self.body()
        self.say(200, {})


@contextmanager
def wandb_server() -> Iterator[WandbServer]:
    state = WandbServer()
    with serving(_Handler, state=state) as state.url:
        try:
            yield state
        finally:
            state.let_go.set()
