"""W&B's client and W&B behind it, for tests with hundreds of sessions."""

from __future__ import annotations

from typing import Any


class FarSide:
    """W&B as its client sees it: takes numbered records, has the first of them, and loses the rest with the client."""

    id = path = "run"

    def __init__(self) -> None:
        self.there: list[dict[str, Any]] = []
        self.on_the_way: list[dict[str, Any]] = []
        self.starting_step = 0
        self.resumed = False
        self.artifacts: list[Any] = []

    def open(self, _: Any) -> FarSide:
        self.on_the_way, self.starting_step, self.resumed = [], len(self.there), bool(self.there)
        return self

    def log(self, record: dict[str, Any], step: int, commit: bool) -> None:
        assert commit
        assert step == len(self.there) + len(self.on_the_way)
        self.on_the_way.append(record)

    def arrive(self, count: int) -> None:
        self.there += self.on_the_way[:count]
        self.on_the_way = self.on_the_way[count:]

    def finish(self) -> None:
        self.arrive(len(self.on_the_way))

    def log_artifact(self, artifact: Any, aliases: list[str]) -> None:
        self.artifacts.append((artifact.name, aliases))
