"""What the trainers know of their run in addition to OpenRLHF's arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray

from meds_openrlhf.config import MedsSettings
from meds_openrlhf.features.kind import Feature
from meds_openrlhf.memory.pool import MemoryPool
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.training.control import Stopped


@dataclass(frozen=True)
class TrainerContext:
    """Settings and handles; ``pool`` is None without a memory."""

    meds: MedsSettings
    paths: RunPaths
    control: Any  # handle of the run's RunControl
    pool: MemoryPool | None
    feature: Feature  # what the memory's rows are
    recorder: Any  # handle of the run's RolloutRecorder; None if rollouts are not recorded
    first_step: int  # 0, or the step of the checkpoint from which the run resumes

    def tell(self, news: Stopped | str) -> None:
        """Send a stop notice or a text to the driver; a text is shown to the user."""
        ray.get(self.control.tell.remote(news))
