"""A small W&B for tests: what the real client says to it is kept, and it can hang, refuse or be slow."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class WandbServer:
    """Keeps what it is told; ``behaviour`` is "answers", "hangs" or "refuses", and may change at any time."""

    def __init__(self) -> None:
        self.behaviour, self.delay = "answers", 0.0
        self.history: dict[int, dict[str, Any]] = {}  # by the offset of the line
        self.summary: dict[str, Any] = {}
        self.runs: list[dict[str, Any]] = []  # the variables of each UpsertBucket
        self.artifacts: list[dict[str, Any]] = []
        self.manifests: list[dict[str, Any]] = []
        self.log = False
        self.operations: list[str] = []
        self.let_go = threading.Event()
        handler = type("Handler", (_Handler,), {"state": self})
        self.http = _Server(("127.0.0.1", 0), handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}"

    def points(self, name: str) -> list[Any]:
        """The values of one metric, in the order in which they are kept."""
        lines = [self.history[offset] for offset in sorted(self.history)]
        return [line[name] for line in lines if name in line]

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if self.log:
            print(query)
        operation = query.split("(")[0].split("{")[0].split()[-1]
        self.operations.append(operation)
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
        if operation == "GetDefaultEntity":
            return {"viewer": {"id": "V", "entity": "someone"}}
        if operation in ("Run", "RunHistoryKeys"):
            keys = {"lastStep": max([line["_step"] for line in self.history.values()], default=-1)}
            return {"project": {"internalId": "1", "run": {**bucket, "state": "running", "historyKeys": keys}}}
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "B", "uploadHeaders": [], "files": files}}
        return self._answer_about_artifacts(operation, variables)

    def _answer_about_artifacts(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        file = {"id": "F", "uploadUrl": f"{self.url}/upload/manifest", "uploadHeaders": []}
        if operation == "CreateArtifact":
            self.artifacts.append(variables["input"])
            artifact = {"id": f"A{len(self.artifacts)}", "state": "PENDING", "artifactSequence": None}
            return {"createArtifact": {"artifact": artifact}}
        if operation == "CreateArtifactManifest":
            return {"createArtifactManifest": {"artifactManifest": {"id": "M", "file": file}}}
        if operation == "UpdateArtifactManifest":
            return {"updateArtifactManifest": {"artifactManifest": {"id": "M", "file": file}}}
        if operation == "CreateArtifactFiles":
            nodes = [
                {"storagePath": None, "uploadUrl": f"{self.url}/upload/artifact", "uploadHeaders": [],
                 "uploadMultipartUrls": None, "artifact": {"id": f"A{len(self.artifacts)}"}}
                for _ in variables["input"]["artifactFiles"]
            ]  # fmt: skip
            return {"createArtifactFiles": {"files": {"edges": [{"node": node} for node in nodes]}}}
        if operation == "CommitArtifact":
            return {"commitArtifact": {"artifact": {"id": variables["artifactID"], "digest": "d"}}}
        return {"project": None}  # nothing of that name is there yet

    def stream(self, content: dict[str, Any]) -> None:
        for name, part in (content.get("files") or {}).items():
            lines = [json.loads(line) for line in part["content"]]
            if name == "wandb-history.jsonl":
                self.history.update(enumerate(lines, start=part["offset"]))
            if name == "wandb-summary.json":
                self.summary = lines[-1]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is killed while it talks is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    state: WandbServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self._body()
        if self.state.behaviour == "hangs":
            self.state.let_go.wait()
            self.close_connection = True
            return
        time.sleep(self.state.delay)
        if self.state.behaviour == "refuses":
            self._say(401, {"errors": [{"message": "bad key"}]})
        elif self.path.endswith("/graphql"):
            asked = json.loads(body)
            self._say(200, {"data": self.state.answer(asked["query"], asked.get("variables") or {})})
        else:
            self.state.stream(json.loads(body))
            self._say(200, {"exitcode": None, "limits": {}})

    def do_PUT(self) -> None:
        body = self._body()
        if self.path.endswith("/manifest"):
            self.state.manifests.append(json.loads(body))
        self._say(200, {})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _say(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def wandb_server() -> Iterator[WandbServer]:
    server = WandbServer()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.let_go.set()
        server.http.shutdown()
        server.http.server_close()
