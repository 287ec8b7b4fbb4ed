"""OpenRLHF's maker of experiences and ours, with fake models."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController

from meds_openrlhf.config import PenaltySettings
from meds_openrlhf.config.method import Method
from meds_openrlhf.config.schema import ExplorationSettings
from meds_openrlhf.features.moments import NO_MOMENTS
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.shard import MemoryAnswer, ShardSettings, ShardStats
from meds_openrlhf.training.step.experience import ExperienceMaker, MemoryExperienceMaker
from tests.training.step.rollouts import (
    FakeCriticGroup,
    FakePolicyGroup,
    OneShardPool,
)

TOKENIZER = SimpleNamespace(pad_token_id=0)


def plain_maker(args: Any) -> RemoteExperienceMaker:
    strategy = SimpleNamespace(args=args)
    critic = FakeCriticGroup() if args.algo.advantage.estimator == "gae" else None
    return RemoteExperienceMaker(
        FakePolicyGroup(False), critic, None, None, FixedKLController(0.0), strategy, TOKENIZER
    )


def our_maker(args: Any, correct_threshold: float = 0.5) -> ExperienceMaker:
    """Ours without a memory."""
    return ExperienceMaker(
        FakePolicyGroup(True), None, None, None, FixedKLController(0.0), SimpleNamespace(args=args), TOKENIZER,
        correct_threshold=correct_threshold,
    )  # fmt: skip


def memory_maker(
    args: Any,
    folder: Path,
    remember: str = "wrong",
    settings: ShardSettings | None = None,
    exploration: ExplorationSettings | None = None,
    **penalty: Any,
) -> tuple[MemoryExperienceMaker, OneShardPool]:
    pool = OneShardPool(folder, settings)
    critic = FakeCriticGroup() if args.algo.advantage.estimator == "gae" else None
    maker = MemoryExperienceMaker(
        FakePolicyGroup(True), critic, None, None, FixedKLController(0.0), strategy=SimpleNamespace(args=args),
        tokenizer=TOKENIZER, pool=pool, transform=FeatureTransform(),
        method=Method(), penalty=PenaltySettings(**penalty), remember=remember, exploration=exploration,
    )  # fmt: skip
    return maker, pool


class SizesBySample:
    """A memory in which every rollout falls into a cluster as large as its own index."""

    def observe(self, step: int, rows: Any) -> MemoryAnswer:
        self.rows = rows.to_pylist()
        sample = rows.column("sample").to_numpy()
        return MemoryAnswer(sample, np.zeros_like(sample), sample, ShardStats(), NO_MOMENTS)


def in_order_of_samples(experiences: list[Experience], name: str) -> torch.Tensor:
    values = torch.empty(sum(len(experience.index) for experience in experiences))
    for experience in experiences:
        values[experience.index] = experience.info[name]
    return values
