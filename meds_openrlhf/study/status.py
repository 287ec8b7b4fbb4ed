"""How far each run of a study is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from statistics import median

from meds_openrlhf.locks import try_lock
from meds_openrlhf.report.history import read_lines
from meds_openrlhf.study.plan import StudyRun
from meds_openrlhf.study.results import RunResult, read_result
from meds_openrlhf.study.study_file import Study

_LAST_WRITTEN = "tokenizer_config.json"  # of a saved model


class Status(Enum):
    """The state of a run::

    MISSING ──► RUNNING ──► DONE
                  │  └────► FAILED ──► (the next `meds study run`)
                  └───────► STOPPED ─► (the next one goes on)
    """

    DONE = "done"
    RUNNING = "running"
    FAILED = "failed"
    STOPPED = "stopped"
    MISSING = "missing"


@dataclass(frozen=True)
class RunStatus:
    """A run's state; ``steps`` are those in its metrics, ``detail`` is the stage or the error."""

    run: StudyRun
    state: Status
    steps: int
    detail: str
    result: RunResult | None


def status_of(run: StudyRun, running: Mapping[str, str] | None = None) -> RunStatus:
    """The status of a run; ``running`` are the stages of the runs that are being made, by name.

    Raises ConfigError if its result is of other settings.
    """
    result, steps = read_result(run), steps_done(run)
    if result is not None and result.failed is None:
        return RunStatus(run, Status.DONE, run.study.steps, "; ".join(result.notes), result)
    if running is not None and run.name in running:
        return RunStatus(run, Status.RUNNING, steps, running[run.name], None)
    if result is not None:
        return RunStatus(run, Status.FAILED, steps, result.failed or "", None)
    if run.paths.config.exists():
        return RunStatus(run, Status.STOPPED, steps, "trained" if is_trained(run) else "", None)
    return RunStatus(run, Status.MISSING, steps, "", None)


def statuses_of(runs: Sequence[StudyRun]) -> list[RunStatus]:
    """The status of all runs."""
    running = running_now(runs[0].study)
    return [status_of(run, running) for run in runs]


def finished_results(runs: Sequence[StudyRun]) -> list[RunResult]:
    """The results of the finished runs, in the order of ``runs``."""
    results = (read_result(run) for run in runs)
    return [result for result in results if result is not None and result.failed is None]


def running_now(study: Study) -> dict[str, str]:
    """The stages of the runs that a living process is making, by name."""
    lock, now = study.runs / ".lock", study.runs / "now.json"
    if not lock.is_file() or not now.is_file():
        return {}
    with lock.open() as file:
        if try_lock(file.fileno(), optional=True):  # nobody has it
            return {}
    stages: dict[str, str] = json.loads(now.read_text())
    return stages


def steps_done(run: StudyRun) -> int:
    """The training steps in the run's metrics."""
    lines = read_lines(run.paths.metrics)
    return int(lines[-1]["step"]) if lines else 0


def is_trained(run: StudyRun) -> bool:
    """Whether the run has trained all of its steps and saved its policy."""
    return (run.paths.model / _LAST_WRITTEN).is_file() and steps_done(run) >= run.study.steps


def hours_left(statuses: Sequence[RunStatus], finished: Sequence[RunResult], parallel: int) -> float | None:
    """Hours for what is not done, with so many runs at a time, by the median of the ``finished`` runs of its task.

    A task without such a run takes as long as the others. None if no run has finished.
    """
    hours = [(result.task, result.hours) for result in finished if result.hours is not None]
    if not hours:
        return None
    left = 0.0
    for row in statuses:
        if row.result is None:
            of_task = [time for task, time in hours if task == row.run.task] or [time for _, time in hours]
            left += median(of_task) * max(1 - row.steps / row.run.study.steps, 0)
    return left / parallel


def status_lines(statuses: Sequence[RunStatus]) -> list[str]:
    """A table of the runs, and a line that sums it up."""
    rows = [(row.run.name, row.state.value, f"{row.steps}/{row.run.study.steps}", row.detail) for row in statuses]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    table = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d}".rstrip() for a, b, c, d in rows]
    counts = [(sum(row.state is state for row in statuses), state.value) for state in Status]
    summed = ", ".join(f"{count} {name}" for count, name in counts if count)
    finished = [row.result for row in statuses if row.result is not None]
    left = hours_left(statuses, finished, max(sum(row.state is Status.RUNNING for row in statuses), 1))
    unfinished = any(row.state is not Status.DONE for row in statuses)
    time_left = f"; about {timedelta(hours=round(left, 2))} left" if left is not None and unfinished else ""
    return [*table, f"{len(statuses)} runs: {summed}{time_left}"]
