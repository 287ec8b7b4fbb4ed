"""The driver follows a run: passes news and stop requests on, and names the processes whose loss ends the run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

import ray
import ray._private.state

from meds_openrlhf.runtime.errors import RunLostError, innermost
from meds_openrlhf.runtime.signals import Interruptions, WatchdogExpired
from meds_openrlhf.tracking.sending import Trackers
from meds_openrlhf.training.watch.control import StepReport, Stopped

POLL_SECONDS = 0.5
CENSUS_SECONDS = 5.0
# Callers and other ranks learn of a dead actor shortly before the cluster's actor table shows it.
EXPLANATION_SECONDS = 10.0


class RunListener(Protocol):
    """An observer of a run's progress, such as the console."""

    def start(self, job: Any, placement: Any, total_steps: int) -> None:
        """Called when the run has its resources and starts to load models."""

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Called after each training step."""

    def say(self, line: str) -> None:
        """Show a line to the user."""


@dataclass(frozen=True)
class Following:
    """Everything that the driver monitors while the trainer works."""

    control: Any  # handle of the run's RunControl
    members: list[Member]
    listener: RunListener
    interruptions: Interruptions
    trackers: Trackers

    def to_the_end(self, training: Any) -> Stopped | None:
        """Follow the call ``training`` until it returns or the trainer reports that it stopped.

        Raises RunLostError if a vital process is lost, WatchdogExpired if there is no progress, and any error of the
        call.
        """
        self.interruptions.rewind_watchdog()
        self.interruptions.patient = True
        try:
            return self._follow(training)
        finally:
            self.interruptions.patient = False
            self.interruptions.rewind_watchdog()

    def _follow(self, training: Any) -> Stopped | None:
        next_census, passed_on = 0.0, False
        while True:
            done, _ = ray.wait([training], timeout=POLL_SECONDS)
            for line in self.trackers.poll():
                self.listener.say(line)
            stopped = self._take_news()
            if stopped is not None:
                return stopped
            if done:
                ray.get(training)
                return None
            if self.interruptions.expired:
                raise WatchdogExpired
            if self.interruptions.noted is not None and not passed_on:
                self.control.request_stop.remote()
                self.listener.say("stopping after this step, with a checkpoint; interrupt again to stop at once")
                passed_on = True
            if time.monotonic() >= next_census:
                if loss := first_loss(self.members):
                    raise RunLostError(loss)
                next_census = time.monotonic() + CENSUS_SECONDS

    def _take_news(self) -> Stopped | None:
        for news in ray.get(self.control.take_news.remote()):
            if isinstance(news, Stopped):
                return news
            if isinstance(news, StepReport):
                self.listener.step(news.step, news.metrics)
            else:
                self.listener.say(news)
            self.interruptions.rewind_watchdog()
        return None


@dataclass(frozen=True)
class Member:
    """A Ray actor of the run; ``vital`` if its loss ends the run (Ray restarts the others)."""

    name: str
    actor_id: str
    vital: bool


# The halves of an asynchronous trainer, which can only be identified by class name.
HALVES = {"MedsTrainingActor": "training half", "MedsSamplesActor": "generating half"}


def members_of(trainer: Any, engines: list[Any], groups: dict[str, Any], shards: list[Any]) -> list[Member]:
    """Return all actors of a run, including others that this driver has started."""
    vital = [("trainer", trainer)]
    for role, group in groups.items():
        vital += [(f"{role} rank {rank}", handle) for rank, handle in enumerate(group._actor_handlers)]
    others = [(f"vLLM engine {number}", handle) for number, handle in enumerate(engines)]
    others += [(f"memory shard {number}", handle) for number, handle in enumerate(shards)]
    known = [Member(name, handle._actor_id.hex(), vital=True) for name, handle in vital]
    known += [Member(name, handle._actor_id.hex(), vital=False) for name, handle in others]
    ids = {member.actor_id for member in known}
    return known + [member for member in actors_of_this_job() if member.actor_id not in ids]


def actor_table() -> dict[str, Any]:
    """Return what the cluster knows of all actors that this driver has started, by id; one request, no dashboard."""
    job = ray.JobID(bytes.fromhex(ray.get_runtime_context().get_job_id()))
    table: dict[str, Any] = ray._private.state.actors(job_id=job)
    return table


def actors_of_this_job() -> list[Member]:
    """Return all actors that this driver has started, named by their classes."""
    return [_by_class(actor["ActorClassName"], actor["ActorID"]) for actor in actor_table().values()]


def _by_class(name: str, actor_id: str) -> Member:
    half = HALVES.get(name)
    return Member(half or f"{name} {actor_id[:8]}", actor_id, vital=half is not None)


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
    while time.monotonic() < deadline:
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
