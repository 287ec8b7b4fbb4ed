"""Messages between driver and trainer during a run: progress to the driver, stop requests to the trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.runtime.ray_connection import WITHOUT_TENSORS, this_node
from meds_openrlhf.step_log import StepLog


@dataclass(frozen=True)
class StepReport:
    """A finished training step, for the console and the metrics file."""

    step: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class Stopped:
    """Training ended after ``step`` on request; ``tag`` names the saved checkpoint, or is None without one."""

    step: int
    tag: str | None


class RunControl:
    """A mailbox; `start_run_control` makes it a Ray actor, since driver and trainer may be on different nodes.

    It also writes the run's logs, so that a step is on disk before the trainer saves its checkpoint.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._log, self._evaluations = StepLog(paths.metrics), StepLog(paths.evaluations)
        self._news: list[StepReport | Stopped | str] = []
        self._stop = False

    def report(self, step: StepReport) -> bool:
        """Log a finished step; return whether the trainer must stop after it."""
        self._log.append(step.step, step.metrics)
        self._news.append(step)
        return self._stop

    def report_evaluation(self, evaluation: StepReport, line: str) -> bool:
        """Log an evaluation after a step; ``line`` is shown to the user. Returns whether the trainer must stop."""
        self._evaluations.append(evaluation.step, evaluation.metrics)
        self._news.append(line)
        return self._stop

    def tell(self, news: Stopped | str) -> None:
        """Queue another message for the driver; a text is shown to the user."""
        self._news.append(news)

    def take_news(self) -> list[StepReport | Stopped | str]:
        """Return all messages since the last call, oldest first."""
        news, self._news = self._news, []
        return news

    def request_stop(self) -> None:
        """Request that training ends after the current step."""
        self._stop = True


def start_run_control(paths: RunPaths) -> Any:
    """Start the mailbox of a run on this node and return its handle."""
    control = ray.remote(num_cpus=0, scheduling_strategy=this_node(), **WITHOUT_TENSORS)(RunControl)
    return control.remote(paths)
