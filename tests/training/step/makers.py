"""OpenRLHF's maker of experiences and ours, with fake models."""

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController

from meds_openrlhf.config import MedsSettings, PenaltySettings
from meds_openrlhf.config.schema import ExplorationSettings, MemorySettings
from meds_openrlhf.features.moments import NO_MOMENTS
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.shard import MemoryAnswer, ShardSettings, ShardStats
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.training.step.experience import ExperienceMaker
from meds_openrlhf.training.watch.control import TrainerContext
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
    meds = MedsSettings(run_dir="x", penalty=PenaltySettings(correct_threshold=correct_threshold))
    return maker_of(args, replace(context_of(meds, pool=None), records_layers=False))


def maker_of(args: Any, context: TrainerContext) -> ExperienceMaker:
    critic = FakeCriticGroup() if args.algo.advantage.estimator == "gae" else None
    return ExperienceMaker(
        FakePolicyGroup(True), critic, None, None, FixedKLController(0.0), strategy=SimpleNamespace(args=args),
        tokenizer=TOKENIZER, context=context, diversity=None,
    )  # fmt: skip


class Context(TrainerContext):
    """A trainer's context without a driver: what it tells is kept."""

    @cached_property
    def told(self) -> list[Any]:
        return []

    def tell(self, news: Any) -> None:
        self.told.append(news)


def context_of(meds: MedsSettings, pool: Any) -> Context:
    return Context(
        meds, RunPaths(Path(meds.run_dir)), control=None, pool=pool, transform=FeatureTransform(), records_layers=True,
        recorder=None, first_step=0,
    )  # fmt: skip


def memory_maker(
    args: Any,
    folder: Path,
    remember: str = "wrong",
    settings: ShardSettings | None = None,
    exploration: ExplorationSettings = ExplorationSettings(),  # noqa: B008
    **penalty: Any,
) -> tuple[ExperienceMaker, OneShardPool]:
    pool = OneShardPool(folder, settings)
    meds = MedsSettings(
        run_dir=str(folder),
        memory=MemorySettings(remember=remember, preset="answers" if exploration.answer_bonus else "paper"),
        penalty=PenaltySettings(**penalty),
        exploration=exploration,
    )
    return maker_of(args, context_of(meds, pool)), pool


def use_pool(maker: ExperienceMaker, pool: Any) -> None:
    """From now on the maker asks this memory."""
    maker._context = replace(maker._context, pool=pool)


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
