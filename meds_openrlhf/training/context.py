"""The context that trainers get in addition to OpenRLHF's arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray

from meds_openrlhf.config import MedsSettings
from meds_openrlhf.features.answer import AnswerLocator
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.pool import MemoryPool
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.training.eval_metrics import eval_line, eval_metrics
from meds_openrlhf.training.run_control import StepReport, Stopped


@dataclass(frozen=True)
class TrainerContext:
    """Settings and handles that trainers get besides OpenRLHF's arguments; ``pool`` is None without a memory."""

    meds: MedsSettings
    paths: RunPaths
    control: Any  # handle of the run's RunControl
    pool: MemoryPool | None
    transform: FeatureTransform
    records_layers: bool  # whether the policy records what the memory stores
    recorder: Any  # handle of the run's RolloutRecorder; None if rollouts are not recorded
    first_step: int  # 0, or the step of the checkpoint from which the run resumes

    @property
    def keeps_scores_below(self) -> float | None:
        """Dynamic filtering keeps groups whose scores are all below this value; None keeps OpenRLHF's filter."""
        return self.meds.penalty.correct_threshold if self.meds.rollout.keep_all_wrong else None

    @property
    def steps_left(self) -> int | None:
        """How many steps are left by meds.max_steps; None for no limit."""
        return None if self.meds.max_steps is None else self.meds.max_steps - self.first_step

    def eval_metrics(self, tokenizer: Any) -> Callable[..., dict[str, float]]:
        """Return what takes the place of OpenRLHF's ``compute_eval_metrics``."""
        features = self.meds.features
        locator = AnswerLocator(tokenizer, features.answer_openings, features.answer_pattern)
        return partial(eval_metrics, threshold=self.meds.penalty.correct_threshold, locator=locator)

    def report_evaluation(self, step: int, metrics: dict[str, float]) -> None:
        """Log an evaluation and show it to the user."""
        ray.get(self.control.report_evaluation.remote(StepReport(step, metrics), eval_line(step, metrics)))

    def tell(self, news: Stopped | str) -> None:
        """Send a stop notice or a text to the driver; a text is shown to the user."""
        ray.get(self.control.tell.remote(news))
