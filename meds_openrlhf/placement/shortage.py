"""A cluster without enough room for a run: the error, and waiting until there is room."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.placement.inventory import Node

POLL_SECONDS = 1.0
T = TypeVar("T")


class Shortage(ConfigError):
    """The cluster is too small, or too much of it is in use; ``text`` says what is needed and what is free."""

    def __init__(self, text: str, advice: str) -> None:
        self.text = text
        super().__init__("cluster", None, f"has no room for {text}. {advice}")


def when_free(
    place: Callable[[Sequence[Node]], T],
    inventory: Callable[[], Sequence[Node]],
    seconds: float,
    tell: Callable[[str], None],
    may_grow: bool = False,
) -> T:
    """Return what ``place`` returns as soon as the cluster's nodes have room. Raises Shortage after ``seconds``.

    Raises Shortage immediately if even the empty cluster is too small, unless nodes may join (``may_grow``).
    """
    deadline, has_told = time.monotonic() + seconds, False
    while True:
        nodes = inventory()
        try:
            return place(nodes)
        except Shortage as shortage:
            if not may_grow:
                place([node.emptied() for node in nodes])
            if time.monotonic() > deadline:
                raise
            if not has_told:
                tell(f"waiting up to {seconds:g} seconds for room for {shortage.text}")
            has_told = True
        time.sleep(POLL_SECONDS)
