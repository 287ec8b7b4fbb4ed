"""A run's folder, written as the driver writes it, and what is sent of it."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.step_log import StepLog
from meds_openrlhf.tracking.sending import Trackers, _Sender
from tests.processes import DEADLINE

CONFIG = """\
meds:
  run_dir: runs/my-run
  penalty:
    alpha: 0.1
actor:
  learning_rate: 1.0e-06
logger:
  wandb:
    project: fruit
"""
KEY = "b7" * 20


class WrittenRun:
    """Steps, evaluations and clusters in a run's files; ``resume`` cuts them, as the driver does."""

    def __init__(self, folder: Path) -> None:
        self.paths = RunPaths(folder)
        folder.mkdir(parents=True)
        self.paths.config.write_text(CONFIG)
        self.tensorboard = self.paths.tensorboard / folder.name
        files = {"metrics": self.paths.metrics, "evaluations": self.paths.evaluations, "clusters": self.paths.clusters}
        self.logs = {stream: StepLog(path) for stream, path in files.items()}

    def step(self, step: int, **metrics: float) -> None:
        self.logs["metrics"].append(step, metrics)

    def steps(self, *steps: int, times: float = 1.0) -> None:
        """Steps whose loss is their number, ``times`` a factor."""
        for step in steps:
            self.step(step, loss=step * times)

    def evaluation(self, step: int, **metrics: float) -> None:
        self.logs["evaluations"].append(step, metrics)

    def clusters(self, step: int, answer: str | None = "17", response: str | None = "so 17") -> None:
        biggest = {
            "prompt": "k1", "prompt_text": "9 + 9?", "label": 3, "size": 12, "members": 4,
            "answer": answer, "response": response,
        }  # fmt: skip
        histograms = {"meds/cluster_sizes": {"edges": [1, 2, 4], "counts": [5, 7]}}
        self.logs["clusters"].append(step, {"histograms": histograms, "biggest_clusters": [biggest]})

    def resume(self, step: int) -> None:
        for log in self.logs.values():
            log.cut_after(step)

    def write_secrets(self) -> None:
        """A configuration with a secret by name, and one by the environment's value."""
        self.paths.config.write_text(CONFIG + f"reward:\n  api_key: very-secret\n  note: {KEY}\n")

    def send(self, *packages: str, first_step: float = math.inf) -> None:
        """One session from its start to its end, in which all is sent."""
        assert Trackers(self.paths, list(packages), first_step=first_step).finish(DEADLINE) == []

    def rest_of(self, name: str) -> str:
        """The last line about a tracker that has not everything."""
        return f"not everything was sent to {name}. Send the rest with: meds track {self.paths.root}"

    def id(self) -> str:
        return str(json.loads(self.paths.tracking.read_text())["id"])

    def holds(self, *secrets: str) -> bool:
        """Whether a file besides the configuration, which is the user's, has one of the secrets."""
        files = [path.read_bytes() for path in self.paths.root.rglob("*") if path.is_file()]
        written = [content for content in files if content != self.paths.config.read_bytes()]
        assert written
        return any(secret.encode() in content for content in written for secret in secrets)

    def board(self) -> Any:
        """TensorBoard's own reader of the run."""
        accumulator = EventAccumulator(str(self.tensorboard))
        accumulator.Reload()
        return accumulator

    def on_the_board(self) -> list[int]:
        """The steps whose loss TensorBoard shows."""
        is_there = self.tensorboard.exists() and "train/loss" in self.board().Tags()["scalars"]
        return [event.step for event in self.board().Scalars("train/loss")] if is_there else []


def follow_until(trackers: Trackers, happened: Callable[[list[str]], bool]) -> list[str]:
    """What was said until something happened, which may be that something was said."""
    said, deadline = trackers.poll(), time.monotonic() + DEADLINE
    while not happened(said):
        assert time.monotonic() < deadline, said
        said += trackers.poll()
        time.sleep(0.05)
    return said + trackers.poll()


@contextmanager
def without_trackers() -> Iterator[None]:
    """Neither the trackers that this machine's user has asked for, nor what a test or a client leaves behind."""
    before = dict(os.environ)
    for name in before:
        if name.startswith(("WANDB_", "SWANLAB_", "MLFLOW_")):
            del os.environ[name]
    yield
    for thread in threading.enumerate():
        if isinstance(thread, _Sender) and thread.name == "W&B":  # else the next test's W&B asks this one's server
            thread.join(DEADLINE)
            assert not thread.is_alive()
    os.environ.clear()
    os.environ.update(before)
