"""Finds which Ray actors of this driver died and why, for the message of a run that has lost a process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
import ray._private.state

from meds_openrlhf.runtime.errors import innermost

# Callers and other ranks learn of a dead actor shortly before the cluster's actor table shows it.
EXPLANATION_SECONDS = 10.0


@dataclass(frozen=True)
class Member:
    """A Ray actor of the run; ``vital`` if its loss ends the run (Ray restarts the others)."""

    name: str
    actor_id: str
    vital: bool


def actor_table() -> dict[str, Any]:
    """Return the cluster's table of all actors that this driver has started, by id; needs no dashboard."""
    job = ray.JobID(bytes.fromhex(ray.get_runtime_context().get_job_id()))
    table: dict[str, Any] = ray._private.state.actors(job_id=job)
    return table


def actors_of_this_job(vital: Mapping[str, str] | None = None) -> list[Member]:
    """Return all actors that this driver has started, named by class and id, or by ``vital``, with names by class."""
    names, found = vital or {}, actor_table().values()
    kinds = [(actor["ActorClassName"], actor["ActorID"]) for actor in found]
    return [Member(names.get(kind, f"{kind} {identity[:8]}"), identity, kind in names) for kind, identity in kinds]


def first_loss(members: list[Member]) -> str | None:
    """Describe the first vital member that died; None if all are alive."""
    table = actor_table()
    dead = [m for m in members if m.vital and m.actor_id in table and table[m.actor_id]["State"] == "DEAD"]
    if not dead:
        return None
    # The trainer usually dies because another member did, so it comes last.
    first = min(dead, key=lambda member: (member.name == "trainer", table[member.actor_id]["EndTime"]))
    return f"{first.name} was lost: {_reason(table[first.actor_id])}"


def loss_behind(error: BaseException, members: list[Member]) -> str | None:
    """Describe the loss that caused ``error``; None if it has another cause.

    Any error may be the loss of a member: it breaks the collectives of other ranks, which report whatever their backend
    raises. An actor whose constructor raised an error does not count as lost, because the user needs to see that error.
    """
    cause = innermost(error)
    if isinstance(cause, ray.exceptions.RayActorError) and cause.actor_init_failed:
        return None
    deadline = time.monotonic() + EXPLANATION_SECONDS
    while time.monotonic() < deadline and any(member.vital for member in members):
        loss = first_loss(members)
        if loss is not None:
            return loss
        time.sleep(0.5)
    if not isinstance(cause, ray.exceptions.RayActorError):
        return None
    actor = actor_table().get(cause.actor_id)
    names = {member.actor_id: member.name for member in members}
    name = names.get(cause.actor_id, actor["ActorClassName"] if actor else "an actor")
    return f"{name} was lost: {_reason(actor) if actor else cause}"


def _reason(actor: Any) -> str:
    address, process = actor["Address"]["IPAddress"], actor["Pid"]
    where = f"process {process} on {address}"
    cause = actor["DeathCause"]
    kind = cause.WhichOneof("context") if hasattr(cause, "WhichOneof") else None
    text = getattr(getattr(cause, kind), "error_message", "") if kind else ""
    detail = text.split("Worker exit detail: ")[-1].split(" Some common causes")[0].strip()
    return f"{where}: {detail.rstrip('.')}" if detail else where
