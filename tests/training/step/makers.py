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
from meds_openrlhf.memory.shard import MemoryAnswer, ShardSettings, ShardStats
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.training.step.experience import ExperienceMaker, StepResult
from meds_openrlhf.training.watch.control import TrainerContext
from tests.training.step.rollouts import FakeCriticGroup, FakePolicyGroup, OneShardPool, recorded_rollouts


class Context(TrainerContext):
    """A trainer's context without a driver: what it tells is kept."""

    @cached_property
    def told(self) -> list[Any]:
        return []

    def tell(self, news: Any) -> None:
        self.told.append(news)


def context_of(meds: MedsSettings, pool: Any = None) -> Context:
    return Context(
        meds, RunPaths(Path(meds.run_dir)), control=None, pool=pool, records_layers=True, recorder=None, first_step=0
    )


def models_of(args: Any) -> list[Any]:
    """The arguments of OpenRLHF's maker."""
    critic = FakeCriticGroup() if args.algo.advantage.estimator == "gae" else None
    tokenizer = SimpleNamespace(pad_token_id=0)
    return [FakePolicyGroup(), critic, None, None, FixedKLController(0.0), SimpleNamespace(args=args), tokenizer]


def plain_maker(args: Any) -> RemoteExperienceMaker:
    return RemoteExperienceMaker(*models_of(args))


def our_maker(args: Any) -> ExperienceMaker:
    """Ours without a memory."""
    context = replace(context_of(MedsSettings(run_dir="x")), records_layers=False)
    return ExperienceMaker(*models_of(args), context=context)


def memory_maker(
    args: Any,
    folder: Path,
    remember: str = "wrong",
    settings: ShardSettings | None = None,
    exploration: ExplorationSettings = ExplorationSettings(),  # noqa: B008
    **penalty: Any,
) -> tuple[ExperienceMaker, OneShardPool]:
    """Ours with a memory of one shard, and without measures of diversity."""
    pool = OneShardPool(folder, settings)
    meds = MedsSettings(
        run_dir=str(folder),
        memory=MemorySettings(remember=remember, preset="answers" if exploration.answer_bonus else "paper"),
        penalty=PenaltySettings(**penalty),
        exploration=exploration,
    )
    maker = ExperienceMaker(*models_of(args), context=context_of(meds, pool))
    maker.diversity = None
    return maker, pool


def last_step(maker: ExperienceMaker, steps: int = 1) -> StepResult:
    """The same rollouts in every step."""
    for step in range(1, steps + 1):
        result = maker.make_step(recorded_rollouts(), step)
    return result


class GivenSizes:
    """A memory that says how large each rollout's cluster is, and keeps the ``rows`` of a step."""

    def __init__(self, sizes: Any) -> None:
        self._sizes = np.array(sizes, np.int32)

    def observe(self, step: int, rows: Any) -> MemoryAnswer:
        self.rows = rows.to_pylist()
        sample = rows.column("sample").to_numpy()
        return MemoryAnswer(sample, np.zeros_like(sample), self._sizes[sample], ShardStats(), NO_MOMENTS)


def use_sizes(maker: ExperienceMaker, sizes: Any) -> GivenSizes:
    """From now on the maker's memory gives these cluster sizes, one of each sample."""
    maker._context = replace(maker._context, pool=(pool := GivenSizes(sizes)))
    return pool


def by_sample(experiences: list[Experience], name: str) -> torch.Tensor:
    """A metric (n,), or a field per token (n,) at each sample's last generated token, in the order of the samples."""
    values = torch.empty(sum(len(experience.index) for experience in experiences))
    for experience in experiences:
        found = experience.info[name] if name in experience.info else getattr(experience, name)
        last = experience.action_mask.cumsum(1).argmax(1, keepdim=True)
        values[experience.index] = found if found.dim() == 1 else found.gather(1, last)[:, 0]
    return values
