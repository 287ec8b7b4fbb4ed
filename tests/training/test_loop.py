"""The order of a synchronous run's steps, checkpoints and evaluations, with everything else left out."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.step_log import StepLog
from meds_openrlhf.training.loop import SynchronousRun

EVERY, LAST = 2, 6


class Trainer:
    """Begins after a checkpoint of ``step``, and is told to stop after ``stop_at``."""

    def __init__(self, log: StepLog, step: int, stop_at: int) -> None:
        self.args = SimpleNamespace(ckpt=SimpleNamespace(disable_ds=False))
        self._log, self._step, self._stop_at, self.trained = log, step, stop_at, list[int]()

    def resume(self) -> dict[str, Any]:
        return {"global_step": self._step}

    def step(self, rollouts: Any, step: int) -> dict[str, float]:
        self.trained.append(step)
        return {}

    def finish_step(self, step: int, *_: Any) -> bool:
        return step == self._stop_at

    def finish_evaluation(self, evaluated: int, metrics: dict[str, float], step: int, state: Any) -> bool:
        self._log.append(evaluated, metrics)
        return False

    def flush(self) -> None: ...


class Rollouts:
    """A run of six steps."""

    evaluates = True

    def __init__(self, step: int) -> None:
        self._step = step

    def resume(self, state: dict[str, Any]) -> None: ...

    def generate(self) -> Any:
        self._step += 1
        return SimpleNamespace(state={}) if self._step <= LAST else None

    def evaluate(self) -> dict[str, float]:
        return {"eval_a_pass1": 0.5}


def run(paths: RunPaths, step: int, stop_at: int = 0) -> list[int]:
    """Train from a checkpoint of ``step``; return the steps."""
    loop = object.__new__(SynchronousRun)
    log = StepLog(paths.evaluations)
    loop._args = SimpleNamespace(eval=SimpleNamespace(steps=EVERY))
    loop._context = SimpleNamespace(paths=paths, tell=lambda _: None)
    loop._trainer, loop._rollouts = trainer, _ = Trainer(log, step, stop_at), Rollouts(step)
    loop.fit()
    return trainer.trained


@pytest.mark.parametrize("stop_at", range(1, LAST + 1))
def test_a_run_that_is_stopped_anywhere_has_every_evaluation_once(tmp_path: Path, stop_at: int) -> None:
    paths = RunPaths(tmp_path)
    assert run(paths, 0, stop_at) == [*range(1, stop_at + 1)]
    assert run(paths, stop_at) == [*range(stop_at + 1, LAST + 1)]
    assert [line["step"] for line in StepLog(paths.evaluations).read()] == [2, 4, 6]
