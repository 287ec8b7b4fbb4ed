"""The driver follows a run: it forwards news and stop requests, and monitors the processes whose loss ends the run."""

from __future__ import annotations

import time
from typing import Any

import ray

from meds_openrlhf.runtime.errors import Interruptions, RunLostError, WatchdogExpired
from meds_openrlhf.runtime.losses import Member, actors_of_this_job, first_loss
from meds_openrlhf.terminal import RunConsole
from meds_openrlhf.tracking.sending import Trackers
from meds_openrlhf.training.watch.control import StepReport, Stopped

POLL_SECONDS = 0.5
CENSUS_SECONDS = 5.0  # between two looks for lost actors


def follow(
    training: Any,
    control: Any,
    members: list[Member],
    console: RunConsole,
    interruptions: Interruptions,
    trackers: Trackers,
) -> Stopped | None:
    """Follow the call ``training`` until it returns or the trainer reports that it stopped.

    ``control`` is the handle of the run's RunControl. Raises RunLostError if a vital process is lost, WatchdogExpired
    if there is no progress, and any error of the call.
    """
    next_census, passed_on = 0.0, False
    interruptions.rewind_watchdog()
    interruptions.patient = True
    try:
        while True:
            done, _ = ray.wait([training], timeout=POLL_SECONDS)
            for line in trackers.poll():
                console.say(line)
            stopped = _take_news(control, console, interruptions)
            if stopped is not None:
                return stopped
            if done:
                ray.get(training)
                return None
            if interruptions.expired:
                raise WatchdogExpired
            if interruptions.noted is not None and not passed_on:
                control.request_stop.remote()
                console.say("stopping after this step, with a checkpoint; interrupt again to stop at once")
                passed_on = True
            if time.monotonic() >= next_census:
                if loss := first_loss(members):
                    raise RunLostError(loss)
                next_census = time.monotonic() + CENSUS_SECONDS
    finally:
        interruptions.patient = False
        interruptions.rewind_watchdog()


def _take_news(control: Any, console: RunConsole, interruptions: Interruptions) -> Stopped | None:
    for news in ray.get(control.take_news.remote()):
        if isinstance(news, Stopped):
            return news
        if isinstance(news, StepReport):
            console.step(news.step, news.metrics)
        else:
            console.say(news)
        interruptions.rewind_watchdog()
    return None


# The halves of an asynchronous trainer, which the driver knows only by their class names.
HALVES = {"MedsTrainingActor": "training half", "MedsSamplesActor": "generating half"}


def members_of(trainer: Any, engines: list[Any], groups: dict[str, Any], shards: list[Any]) -> list[Member]:
    """Return all actors of a run, including actors that only the actor table lists."""
    vital = {"trainer": trainer}
    for role, group in groups.items():
        vital |= {f"{role} rank {rank}": handle for rank, handle in enumerate(group._actor_handlers)}
    others = {f"vLLM engine {number}": handle for number, handle in enumerate(engines)}
    others |= {f"memory shard {number}": handle for number, handle in enumerate(shards)}
    known = [Member(name, handle._actor_id.hex(), name in vital) for name, handle in (vital | others).items()]
    ids = {member.actor_id for member in known}
    return known + [member for member in actors_of_this_job(HALVES) if member.actor_id not in ids]
