"""Messages between driver and trainer during a run: progress to the driver, stop requests to the trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from meds_openrlhf.config import MedsSettings
from meds_openrlhf.memory.pool import MemoryPool
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.runtime.ray_connection import WITHOUT_TENSORS
from meds_openrlhf.tracking.step_log import StepLog


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


def this_node(soft: bool = False) -> Any:
    """Return the scheduling strategy for actors on this node, where they survive the loss of other nodes.

    With ``soft``, Ray may place them elsewhere if this node has no room.
    """
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=soft)


@dataclass(frozen=True)
class TrainerContext:
    """Settings and handles for the trainers in addition to OpenRLHF's arguments; ``pool`` is None without a memory."""

    meds: MedsSettings
    paths: RunPaths
    control: Any  # handle of the run's RunControl
    pool: MemoryPool | None
    records_layers: bool  # whether the policy records the memory's rows
    recorder: Any  # handle of the run's RolloutRecorder; None if rollouts are not recorded
    first_step: int  # 0, or the step of the checkpoint from which the run resumes

    def tell(self, news: Stopped | str) -> None:
        """Send a stop notice or a text to the driver; a text is shown to the user."""
        ray.get(self.control.tell.remote(news))
