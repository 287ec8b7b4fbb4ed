"""What driver and trainer tell each other while a run goes on: news one way, "stop" the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.step_log import StepLog


@dataclass(frozen=True)
class StepReport:
    """One finished training step, as the console and the metrics file get it."""

    step: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class Stopped:
    """Training has ended after ``step`` because it was asked to; ``tag`` is the checkpoint saved, None without one."""

    step: int
    tag: str | None


class RunControl:
    """A mailbox; `start_run_control` makes it a Ray actor, since driver and trainer are on different nodes.

    It keeps the run's logs itself: a step is on the disk before the trainer goes on to save its checkpoint.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._log, self._evaluations = StepLog(paths.metrics), StepLog(paths.evaluations)
        self._news: list[StepReport | Stopped | str] = []
        self._stop = False

    def report(self, step: StepReport) -> bool:
        """The trainer has finished a step; whether it shall stop after it."""
        self._log.append(step.step, step.metrics)
        self._news.append(step)
        return self._stop

    def report_evaluation(self, evaluation: StepReport, line: str) -> None:
        """The policy was evaluated after a step; ``line`` is for the user to read."""
        self._evaluations.append(evaluation.step, evaluation.metrics)
        self._news.append(line)

    def tell(self, news: Stopped | str) -> None:
        """Anything else that the driver should know; a text is for the user to read."""
        self._news.append(news)

    def take_news(self) -> list[StepReport | Stopped | str]:
        """What was reported since the last call, oldest first."""
        news, self._news = self._news, []
        return news

    def stop_is_requested(self) -> bool:
        """Whether training shall end now, asked between two steps."""
        return self._stop

    def request_stop(self) -> None:
        """Training shall end after the step under way."""
        self._stop = True


def start_run_control(paths: RunPaths) -> Any:
    """The mailbox of one run, as a handle."""
    return ray.remote(num_cpus=0)(RunControl).options(scheduling_strategy=this_node()).remote(paths)


def this_node() -> Any:
    """For actors that belong beside the driver, so that no other node's death takes them away."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
