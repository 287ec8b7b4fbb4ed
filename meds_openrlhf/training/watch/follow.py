"""The driver follows a run: it forwards news and stop requests, and monitors the processes whose loss ends the run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import ray

from meds_openrlhf.console import RunConsole
from meds_openrlhf.runtime.errors import RunLostError
from meds_openrlhf.runtime.losses import Member, actors_of_this_job, first_loss
from meds_openrlhf.runtime.signals import Interruptions, WatchdogExpired
from meds_openrlhf.tracking.sending import Trackers
from meds_openrlhf.training.watch.control import StepReport, Stopped

POLL_SECONDS = 0.5
CENSUS_SECONDS = 5.0  # between two looks for lost actors


@dataclass(frozen=True)
class Following:
    """Everything that the driver monitors while the trainer works."""

    control: Any  # handle of the run's RunControl
    members: list[Member]
    console: RunConsole
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
                self.console.say(line)
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
                self.console.say("stopping after this step, with a checkpoint; interrupt again to stop at once")
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
                self.console.step(news.step, news.metrics)
            else:
                self.console.say(news)
            self.interruptions.rewind_watchdog()
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
