"""What our trainers know beyond OpenRLHF's arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ray

from meds_openrlhf.config import MedsSettings
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.pool import MemoryPool
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.training.driver.run_control import Stopped


@dataclass(frozen=True)
class TrainerContext:
    """What our trainers know beyond OpenRLHF's arguments. ``pool`` is None where the run has no memory."""

    meds: MedsSettings
    paths: RunPaths
    control: Any  # handle of the run's RunControl
    pool: MemoryPool | None
    transform: FeatureTransform
    prompt_ids: dict[str, str] | None
    # The driver's WANDB_* variables: workers of a cluster have its nodes' environment. Keys, so never printed.
    wandb_environment: dict[str, str] = field(repr=False)

    def tell(self, news: Stopped | str) -> None:
        """Send the driver something beside finished steps; a text is shown to the user."""
        ray.get(self.control.tell.remote(news))
