"""Recorded rollouts, hand-written stand-ins for the Ray actors that would have made them, and makers of experiences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController

from meds_openrlhf.arithmetic.tiny_policy import build_char_tokenizer
from meds_openrlhf.config import MedsSettings, PenaltySettings
from meds_openrlhf.config.schema import ExplorationSettings, MemorySettings
from meds_openrlhf.features.answer import AnswerLocator
from meds_openrlhf.features.kind import Feature, Kind
from meds_openrlhf.features.layout import find_answers
from meds_openrlhf.features.moments import NO_MOMENTS
from meds_openrlhf.memory.rows import Sharding
from meds_openrlhf.memory.shard import MemoryAnswer, MemoryShard, ShardSettings, ShardStats
from meds_openrlhf.memory.successes import Counts, Successes
from meds_openrlhf.paths import MemoryPaths, RunPaths
from meds_openrlhf.training.openrlhf.access import parse_openrlhf_arguments
from meds_openrlhf.training.step.context import TrainerContext
from meds_openrlhf.training.step.experience import ExperienceMaker, StepResult
from meds_openrlhf.training.step.policy import Recorded
from meds_openrlhf.training.step.samples import generated_tokens

TOKENIZER = build_char_tokenizer()
LAYERS = 6
NO_ANSWER = 99.0
RECORDED = Feature(Kind.LAYER_LOGITS, LAYERS, True, {})
NOT_RECORDED = replace(RECORDED, is_recorded=False)
# Flags that join the samples by length, so not in their order.
BY_TOKENS = {"train.dynamic_batch_enable": True, "rollout.max_tokens_per_gpu": 40, "train.max_tokens_per_gpu": 40}


def arguments(**flags: Any) -> SimpleNamespace:
    """OpenRLHF's arguments for 3 prompts of 4 rollouts in micro-batches of 5 (which cut through the groups)."""
    base = {
        "vllm.num_engines": 1, "algo.advantage.estimator": "group_norm", "algo.kl.init_coef": 0,
        "rollout.batch_size": 3, "rollout.n_samples_per_prompt": 4, "rollout.micro_batch_size": 5,
        "actor.num_gpus_per_node": 1, "reward.remote_url": "unused.py", "ds.attn_implementation": "sdpa",
    }  # fmt: skip
    return parse_openrlhf_arguments({**base, **flags})


def recorded_rollouts(
    seed: int = 0, prompts: int = 3, responses: int = 4, rewards: Sequence[float] | None = None
) -> list[Experience]:
    """Single-sample experiences as the sample generator makes them: varied lengths, rewards of 0 and 1 or those given.

    A response has its reward as its score, too.
    """
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for number in range(prompts * responses):
        length = int(torch.randint(6, 12, (1,), generator=generator))
        sequences = torch.randint(1, 50, (1, 4 + length), generator=generator)
        action_mask = torch.zeros(1, 3 + length, dtype=torch.long)
        action_mask[:, 3:] = 1
        reward = torch.randint(0, 2, (1,), generator=generator).float()
        if rewards is not None:
            reward = torch.tensor([float(rewards[number])])
        samples.append(Experience(
            sequences=sequences, attention_mask=torch.ones_like(sequences), action_mask=action_mask, index=[number],
            prompts=[f"prompt {number // responses}"], labels=["7"], images=[None], rewards=reward.clone(),
            scores=reward.clone(), response_length=torch.tensor([length]), truncated=torch.tensor([False]),
            total_length=torch.tensor([4.0 + length]), info={"reward": reward.clone()},
        ))  # fmt: skip
    return samples


def set_texts(sample: Experience, prompt: str, response: str, ending: Sequence[int] = ()) -> None:
    """Give a sample these texts, with a token for each character, and the tokens of ``ending``."""
    ids = [*TOKENIZER.encode(prompt + response, add_special_tokens=False), *ending]
    sample.sequences = torch.tensor([ids])
    sample.attention_mask = torch.ones_like(sample.sequences)
    sample.action_mask = torch.tensor([[0] * (len(prompt) - 1) + [1] * (len(ids) - len(prompt))])
    sample.total_length = torch.tensor([float(len(ids))])


def layer_logits_of(sequences: torch.Tensor) -> np.ndarray:
    """A made-up fingerprint (B, N) that depends on the sample's own tokens only, so that mix-ups show."""
    first = sequences[:, :8].double()
    rows = torch.stack([torch.sin(first * (layer + 1)).sum(1) for layer in range(LAYERS)], dim=1)
    return rows.numpy().astype(np.float32)


class FakePolicyGroup:
    """Answers the log-prob recompute like a group of one policy actor.

    It finds the answers in ``texts``; otherwise a response has the answer "7" if it has layer logits.
    """

    def __init__(self, texts: bool = False) -> None:
        self._locator = AnswerLocator(TOKENIZER) if texts else None
        self._recorded: list[Recorded] = []

    def async_run_method(self, method_name: str) -> list[Any]:
        assert method_name == "take_recorded"
        recorded, self._recorded = self._recorded, []
        return [ray.put(recorded)]

    def async_run_method_batch(self, method_name: str, **batches: list[torch.Tensor]) -> list[Any]:
        assert method_name == "forward"
        results = []
        for sequences, action_mask, attention_mask in zip(
            batches["sequences"], batches["action_mask"], batches["attention_mask"]
        ):
            log_probs = -(sequences[:, 1:].float() / 50) * action_mask
            logits = layer_logits_of(sequences)
            located = logits[:, 0] != NO_ANSWER
            answers: list[str | None] = ["7" if found else None for found in located]
            if self._locator is not None:
                found = find_answers(self._locator, sequences, generated_tokens(action_mask, attention_mask))
                answers = [answer.text for answer in found]
            self._recorded.append(Recorded(answers, located, logits, seconds=0.001))
            results.append(log_probs)
        return [ray.put(results)]


class FakeCriticGroup:
    """Answers with the values of a group of one critic."""

    def async_run_method_batch(self, method_name: str, **batches: list[torch.Tensor]) -> list[Any]:
        assert method_name == "forward"
        masks = zip(batches["sequences"], batches["action_mask"])
        return [ray.put([sequences[:, 1:].float() / 100 * mask for sequences, mask in masks])]


class OneShardPool:
    """The pool's `observe` over one shard in this process."""

    def __init__(self, folder: Path, settings: ShardSettings | None = None) -> None:
        self.shard = MemoryShard(MemoryPaths(folder), Sharding(0, 1), settings or ShardSettings(layers=LAYERS))
        self.observed: list[Any] = []

    def observe(self, step: int, rows: Any, counts: Counts) -> MemoryAnswer:
        self.observed.append(rows)
        answer = self.shard.observe(step, rows, counts)
        self.shard.recluster()
        order = np.argsort(answer.sample)  # a shard answers by prompt and verdict; the pool in the order of the rows
        return replace(answer, sample=answer.sample[order], label=answer.label[order], size=answer.size[order])


# ── OpenRLHF's maker of experiences and ours, with fake models ──


class Context(TrainerContext):
    """A trainer's context without a driver: what it tells is kept."""

    @cached_property
    def told(self) -> list[Any]:
        return []

    def tell(self, news: Any) -> None:
        self.told.append(news)


def context_of(meds: MedsSettings, pool: Any = None) -> Context:
    return Context(
        meds, RunPaths(Path(meds.run_dir)), control=None, pool=pool, feature=RECORDED, recorder=None, first_step=0
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
    context = replace(context_of(MedsSettings(run_dir="x")), feature=NOT_RECORDED)
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

    def __init__(self, sizes: Any, successes: Successes) -> None:
        self._sizes, self.successes = np.array(sizes, np.int32), successes

    def observe(self, step: int, rows: Any, counts: Counts) -> MemoryAnswer:
        self.rows = rows.to_pylist()
        sample = rows.column("sample").to_numpy()
        given = np.zeros_like(sample), self._sizes[sample], ShardStats(), NO_MOMENTS
        visits = self.successes.visits_of(counts)
        self.successes.add(visits)
        return MemoryAnswer(sample, *given, visits=visits)


def use_sizes(maker: ExperienceMaker, sizes: Any) -> GivenSizes:
    """From now on the maker's memory gives these cluster sizes, one of each sample."""
    successes = getattr(maker._context.pool, "successes", None) or Successes()
    maker._context = replace(maker._context, pool=(pool := GivenSizes(sizes, successes)))
    return pool


def by_sample(experiences: list[Experience], name: str) -> torch.Tensor:
    """A metric (n,), or a field per token (n,) at each sample's last generated token, in the order of the samples."""
    values = torch.empty(sum(len(experience.index) for experience in experiences))
    for experience in experiences:
        found = experience.info[name] if name in experience.info else getattr(experience, name)
        last = experience.action_mask.cumsum(1).argmax(1, keepdim=True)
        values[experience.index] = found if found.dim() == 1 else found.gather(1, last)[:, 0]
    return values
