"""A run's folder, written as the driver writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from meds_openrlhf.config import RunConfig, load_config
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.sending.tracking_state import rewind
from meds_openrlhf.tracking.step_log import StepLog

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


class WrittenRun:
    """Steps, evaluations and clusters in a run's files; ``resume`` cuts them, as the driver does."""

    def __init__(self, folder: Path) -> None:
        self.paths = RunPaths(folder)
        folder.mkdir(parents=True)
        self.paths.config.write_text(CONFIG)
        files = {"metrics": self.paths.metrics, "evaluations": self.paths.evaluations, "clusters": self.paths.clusters}
        self.logs = {stream: StepLog(path) for stream, path in files.items()}

    @property
    def config(self) -> RunConfig:
        return load_config(self.paths.config)

    @property
    def tensorboard(self) -> Path:
        return self.paths.tensorboard / self.paths.root.name

    def configure(self, lines: str) -> None:
        """Add ``lines`` to the section ``meds`` of its configuration."""
        self.paths.config.write_text(CONFIG.replace("meds:\n", "meds:\n" + lines))

    def step(self, step: int, **metrics: float) -> None:
        self.logs["metrics"].append(step, metrics)

    def evaluation(self, step: int, **metrics: float) -> None:
        self.logs["evaluations"].append(step, metrics)

    def clusters(self, step: int, size: int = 12, answer: str | None = "17", response: str | None = "so 17") -> None:
        biggest = {
            "prompt": "k1", "prompt_text": "9 + 9?", "label": 3, "size": size, "members": 4,
            "answer": answer, "response": response,
        }  # fmt: skip
        histograms = {"meds/cluster_sizes": {"edges": [1, 2, 4], "counts": [5, 7]}}
        self.logs["clusters"].append(step, {"histograms": histograms, "biggest_clusters": [biggest]})

    def resume(self, step: int) -> None:
        for log in self.logs.values():
            log.cut_after(step)
        rewind(self.paths)

    def state(self) -> dict[str, Any]:
        return dict(json.loads(self.paths.tracking.read_text()))
