"""OpenRLHF's Ray actor classes as plain classes, to be subclassed."""

from __future__ import annotations

from typing import Any


def plain_class(actor_class: Any) -> Any:
    """The class that ``@ray.remote`` was put on: Ray's own forbids to subclass it."""
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__
