"""Follows a run: receives news from the trainer, forwards stop requests, and detects lost processes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

import ray

from meds_openrlhf.training.driver.interruption import Interruptions, WatchdogExpired
from meds_openrlhf.training.driver.members import Member, first_loss
from meds_openrlhf.training.errors import RunLostError
from meds_openrlhf.training.run_control import Evaluated, StepReport, Stopped

POLL_SECONDS = 0.5
CENSUS_SECONDS = 5.0


class RunListener(Protocol):
    """An observer of a run's progress, such as the console."""

    def start(self, job: Any) -> None:
        """Called when the run has its resources and starts to load models."""

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Called after each training step."""

    def say(self, line: str) -> None:
        """Show a line to the user."""


class Trackers(Protocol):
    """Sends the run's metrics to trackers."""

    def poll(self) -> list[str]:
        """Return lines for the user, without blocking."""


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
                self._pass_stop_on()
                passed_on = True
            if time.monotonic() >= next_census:
                self._require_members()
                next_census = time.monotonic() + CENSUS_SECONDS

    def _take_news(self) -> Stopped | None:
        for news in ray.get(self.control.take_news.remote()):
            if isinstance(news, Stopped):
                return news
            if isinstance(news, StepReport):
                self.listener.step(news.step, news.metrics)
                self.interruptions.rewind_watchdog()
            elif isinstance(news, Evaluated):
                self.listener.say(news.line)
                self.interruptions.rewind_watchdog()
            else:
                self.listener.say(news)
        return None

    def _pass_stop_on(self) -> None:
        self.control.request_stop.remote()
        self.listener.say("stopping after the step under way, with a checkpoint; once more to stop at once")

    def _require_members(self) -> None:
        loss = first_loss(self.members)
        if loss is not None:
            raise RunLostError(loss)
