"""The driver while a run goes on: news reach the user, a stop reaches the trainer, a failure or a loss ends it."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import RayTaskError

from meds_openrlhf.config import MedsSettings
from meds_openrlhf.features.kind import FeatureFunctionError
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.placement.engine_limits import EngineLimits
from meds_openrlhf.runtime.errors import Interrupted, Interruptions, RunLostError, WatchdogExpired, interruptible
from meds_openrlhf.runtime.losses import Member
from meds_openrlhf.step_log import StepLog
from meds_openrlhf.training.control import StepReport, Stopped, start_run_control
from meds_openrlhf.training.run import Run

pytestmark = pytest.mark.usefixtures("ray_cluster")

JOB: Any = SimpleNamespace(args=SimpleNamespace(ckpt=SimpleNamespace(disable_ds=False)))


def fit(control: Any, steps: int, seconds: float = 0.05) -> None:
    """Reports steps like our trainer, as long as nobody wants it to stop."""
    for step in range(1, steps + 1):
        time.sleep(seconds)
        if ray.get(control.report.remote(StepReport(step, {"reward": 0.5}))):
            ray.get(control.tell.remote(Stopped(step, "tag")))
            return
    ray.get(control.tell.remote("a word at the end"))


def evaluate(control: Any, times: int) -> None:
    for _ in range(times):
        ray.get(control.report_evaluation.remote(StepReport(1, {"pass1": 0.5}), "evaluation after step 1"))


def give_up(_control: Any) -> None:
    raise RunLostError("every vLLM engine was lost")


class Rank: ...


class Console:
    """Keeps what it is told; ``signals`` come at the first step."""

    def __init__(self, *signals: int) -> None:
        self.heard: list[Any] = []
        self._signals = signals

    def step(self, step: int, metrics: dict[str, float]) -> None:
        self.heard.append(step)
        for signum in self._signals if step == 1 else ():
            os.kill(os.getpid(), signum)

    def say(self, line: str) -> None:
        self.heard.append(line)


class Trackers:
    """Processes that send metrics on, and have one thing to say."""

    def __init__(self) -> None:
        self._news = ["W&B does not answer"]

    def poll(self) -> list[str]:
        return [self._news.pop()] if self._news else []


def follow(
    folder: Path, training: Any, *words: Any, members: Any = (), signals: Any = (), minutes: float | None = None
) -> Any:
    """What following a ``training`` comes to, and all that the console heard; no step is waited for afterwards."""
    console = Console(*signals)
    with interruptible(minutes) as interruptions:
        control = start_run_control(RunPaths(folder))
        call = ray.remote(num_cpus=0)(training).remote(control, *words)
        try:
            run = Run(JOB, {}, interruptions, console, Trackers(), list(members))
            return run.follow(call, control), console.heard
        finally:
            assert not interruptions.patient


def test_steps_and_words_reach_the_console_and_the_log(tmp_path: Path) -> None:
    result, heard = follow(tmp_path, fit, 3)
    assert result is None
    assert heard == ["W&B does not answer", 1, 2, 3, "a word at the end"]
    assert StepLog(tmp_path / "metrics.jsonl").read() == [{"step": step, "reward": 0.5} for step in (1, 2, 3)]


def test_a_signal_stops_the_trainer_after_its_step(tmp_path: Path) -> None:
    result, heard = follow(tmp_path, fit, 1000, signals=[signal.SIGTERM])
    assert isinstance(result, Stopped)
    assert result.step < 1000
    assert "stopping after this step, with a checkpoint; interrupt again to stop at once" in heard


def test_a_second_signal_ends_the_waiting(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        follow(tmp_path, fit, 1000, signals=[signal.SIGINT] * 2)


def test_without_steps_the_watchdog_ends_it(tmp_path: Path) -> None:
    with pytest.raises(WatchdogExpired):
        follow(tmp_path, fit, 10, 20.0, minutes=1.5 / 60)


def test_an_evaluation_is_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewound: list[int] = []
    monkeypatch.setattr(Interruptions, "rewind_watchdog", lambda _: rewound.append(1))
    counts = []
    for times in (0, 4):
        rewound.clear()
        _, heard = follow(tmp_path, evaluate, times)
        assert heard[1:] == ["evaluation after step 1"] * times
        counts.append(len(rewound))
    assert counts[1] == counts[0] + 4


def test_an_error_of_the_training_is_raised(tmp_path: Path) -> None:
    with pytest.raises(RayTaskError, match="every vLLM engine was lost"):
        follow(tmp_path, give_up)


def test_a_lost_rank_ends_it_though_the_trainer_does_not_notice(tmp_path: Path) -> None:
    rank = ray.remote(num_cpus=0)(Rank).remote()
    members = [Member("policy rank 3", rank._actor_id.hex(), vital=True)]
    process = ray.get(rank.__ray_call__.remote(lambda self: os.getpid()))
    os.kill(process, signal.SIGKILL)
    with pytest.raises(RunLostError, match=f"policy rank 3 was lost: process {process} on .*exit"):
        follow(tmp_path, fit, 1000, members=members)


FAILED = FeatureFunctionError("my.py: from_texts raised KeyError: 3")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        # Raised in the policy's actor, whose error passes through the trainer's.
        (RayTaskError("fit", "", RayTaskError("forward", "", FAILED)), r"^my.py: from_texts raised KeyError: 3$"),
        (WatchdogExpired(), r"^nothing was finished within 240 minutes .*`ray stack` or `py-spy dump"),
    ],
)
def test_a_failure_ends_the_run_with_a_line(error: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    job = SimpleNamespace(config=SimpleNamespace(meds=MedsSettings(run_dir="r")))
    monkeypatch.setattr(Run, "_start_and_follow", fail)
    with pytest.raises(RunLostError, match=message):
        Run(job, {}, Interruptions(None), None, None).train(EngineLimits(8, 2048))
