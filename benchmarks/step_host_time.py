"""Seconds that GPUs wait for the driver in one training step: OpenRLHF's own classes, and ours with the memory.

Both drivers run a whole step, in turns: they ask the engines for responses, turn these into experience, compute
advantages, and hand mini-batches to the ranks. Engines and ranks are stubs, whose answers are of real size. Run:

    python -m benchmarks.step_host_time --rounds 2
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
import torch

from meds_openrlhf.training.openrlhf import cpu

if not cpu.has_cuda():
    cpu.install()  # before anything of OpenRLHF's

from openrlhf.trainer.ppo_trainer import BasePPOTrainer
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.launcher import RayActorGroup
from ray.util.queue import Queue

from benchmarks.table import HEADER, Line, machine, make_parser, timed
from meds_openrlhf.config import load_config
from meds_openrlhf.features.kind import Feature, Kind, transform_of
from meds_openrlhf.memory.pool import MemoryPool, start_shards
from meds_openrlhf.memory.shard import ShardSettings
from meds_openrlhf.memory.snapshot import MemoryFormat
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.recorder import RolloutRecorder
from meds_openrlhf.rollouts.texts import write_reader
from meds_openrlhf.runtime.ray_connection import ray_connection
from meds_openrlhf.training.control import start_run_control
from meds_openrlhf.training.openrlhf.access import parse_openrlhf_arguments
from meds_openrlhf.training.step.batches import FlatSamples
from meds_openrlhf.training.step.context import TrainerContext
from meds_openrlhf.training.step.engine import in_arrays
from meds_openrlhf.training.step.engine_fleet import EngineFleet, EngineStatus
from meds_openrlhf.training.step.experience import ExperienceMaker
from meds_openrlhf.training.step.policy import Recorded
from meds_openrlhf.training.step.rollout import RolloutGenerator
from meds_openrlhf.training.step.trainer import Trainer
from ray_jobs.validate.random_model import VOCABULARY, large_tokenizer

LAYERS = 28
RANKS, PROCESSES = 8, 2  # ranks of the policy; the processes that play them, and the engines
SIGMA, RIGHT_SHARE = 0.6, 0.4  # of the logarithm of the lengths; of the responses
CASES = ((1100, 3072, 6.0), (2500, 7168, 15.0))  # mean length in tokens, cut, and the most seconds of a step

Step = Callable[[int], dict[str, float]]


def nothing(_self: Any, *_: Any, **__: Any) -> None:
    """Do nothing: a method of engines, ranks and trackers that costs no time here."""


@ray.remote(num_cpus=0)
class _StubEngine:
    """Holds responses to every prompt, as OpenRLHF's agent executor returns them, or ``arrays`` as our engines do."""

    def __init__(self, mean: int, cut: int, prompts: list[str], samples: int, arrays: bool) -> None:
        draws = np.random.default_rng(0)
        drawn = draws.lognormal(np.log(mean) - SIGMA**2 / 2, SIGMA, (len(prompts), samples))
        form = in_arrays if arrays else dict
        self._responses = {
            prompt: [form(self._response(prompt, length, draws)) for length in lengths]
            for prompt, lengths in zip(prompts, np.clip(drawn, 1, cut).astype(int).tolist())
        }

    def _response(self, prompt: str, length: int, draws: np.random.Generator) -> dict[str, Any]:
        reward = float(draws.random() < RIGHT_SHARE)
        judged = {"prompt": prompt, "label": "1", "reward": reward, "scores": reward, "extra_logs": {}}
        tokens = {"observation_tokens": draws.integers(0, VOCABULARY - 1, 100 + length).tolist(), "truncated": False}
        none = dict.fromkeys(("images", "mm_train_inputs", "rollout_log_probs"))
        return {**judged, **none, **tokens, "action_ranges": [(100, 100 + length)]}

    def get_num_unfinished_requests(self) -> int:
        return 0

    def generate_responses(self, prompt: str, **_: Any) -> list[dict[str, Any]]:
        return self._responses[prompt]

    def status(self) -> EngineStatus:
        return EngineStatus(str(id(self)))

    has_received = sleep = wake_up = nothing


@ray.remote(num_cpus=0)
class _StubRank:
    """A rank of the policy: log-probs of zeros, and with ``records`` random layer logits."""

    def __init__(self, records: bool) -> None:
        self._records = records
        self._recorded: deque[list[Recorded]] = deque()  # of each rank that this process plays, in their order
        self._logits = np.random.default_rng(0).normal(size=(4096, LAYERS)).astype(np.float32)

    def execute_batch(self, method: str, data: dict[str, list[Any]], start: int, end: int) -> list[Any]:
        masks = data["action_mask"] if method == "forward" else []
        if self._records and masks:
            self._recorded.append([self._record(*mask.shape) for mask in masks])
        return [torch.zeros(mask.shape) for mask in masks]

    def _record(self, count: int, seed: int) -> Recorded:
        rows = self._logits[np.random.default_rng(seed).integers(0, len(self._logits), count)]
        return Recorded(["7"] * count, np.ones(count, bool), rows, 0.0)

    def take_recorded(self) -> list[Recorded]:
        return self._recorded.popleft()

    def fit(self, kl_ctl: float = 0.0) -> dict[str, float]:
        return {"policy_loss": 0.0}

    empty_cache = broadcast_to_vllm = reload_states = offload_states = nothing


class Prompts(list[Any]):
    """A loader of prompts in their order."""

    def state_dict(self) -> dict[str, Any]:
        """Return no state."""
        return {}


class StubGroup(RayActorGroup):  # type: ignore[misc]
    """OpenRLHF's group of ranks, played by a few `_StubRank` actors."""

    def __init__(self, records: bool) -> None:
        processes = [_StubRank.remote(records) for _ in range(PROCESSES)]
        self._actor_handlers = [processes[rank * PROCESSES // RANKS] for rank in range(RANKS)]
        self.duplicate_actors = 1


class PlainTrainer(BasePPOTrainer):  # type: ignore[misc]
    """OpenRLHF's trainer, which has no tracker here."""

    save_logs_and_checkpoints = nothing


def step_of(
    generate: Callable[[], Any], train: Callable[[Any, int], Any], settle: Callable[[], None] = lambda: None
) -> Step:
    """Return a function that runs one step and returns its seconds by phase; ``settle`` follows, not timed."""

    def step(number: int) -> dict[str, float]:
        started = time.perf_counter()
        samples = generate()
        generated = time.perf_counter()
        train(samples, number)
        total = time.perf_counter() - started
        settle()  # the rest of the rollout log, which on a cluster is done on other cores
        generation = generated - started
        return {"generation calls": generation, "train step": total - generation, "total": total}

    return step


def plain_step(trainer: Any, generator: Any) -> Step:
    """Return a step of OpenRLHF's classes."""
    longest = trainer.args.data.max_len
    return step_of(lambda: generator.generate_samples(max_len=longest)[0], trainer.train_step)


def our_step(strategy: Any, prompts: list[Any], tokenizer: Any, engines: Any, meds: Any, paths: RunPaths) -> Step:
    """Return a step of our classes, with memory, rollout log and mini-batches of whole prompts."""
    transform, feature = transform_of(meds, LAYERS), Feature(Kind.LAYER_LOGITS, LAYERS, True, {})
    memory_format, settings = MemoryFormat(PROCESSES, LAYERS, {}), ShardSettings(LAYERS, transform, meds.memory.method)
    shards = start_shards(paths.memory, memory_format, settings, [{"num_cpus": 0}] * PROCESSES)
    pool = MemoryPool(shards, paths.memory.root, memory_format)
    tokenizer.save_pretrained(paths.model)
    reader = write_reader(str(paths.model), meds.features.answer_pattern, paths.tokenizer)
    recorder = ray.remote(num_cpus=0)(RolloutRecorder).remote(paths, reader, meds.tracking.rollouts)
    context = TrainerContext(meds, paths, start_run_control(paths), pool, feature, recorder, first_step=0)
    group, fleet = StubGroup(records=True), EngineFleet(engines, print)
    trainer = Trainer(strategy, {"policy": group}, fleet, tokenizer, context)
    theirs = SamplesGenerator(strategy, prompts, None, tokenizer, engines)
    generator = RolloutGenerator(theirs, fleet, context, sync_weights=None)

    def train(rollouts: Any, number: int) -> None:
        trainer.finish_step(number + 1, trainer.step(rollouts, number + 1), rollouts.state)

    return step_of(generator.generate, train, trainer._rollouts.flush)


def measure(mean: int, cut: int, rounds: int, prompt_count: int) -> list[list[dict[str, float]]]:
    """Return for each round the seconds of OpenRLHF's driver and of ours, by phase."""
    config = load_config(Path("configs/qwen2.5-math-7b/meds.yaml"))
    flags = {
        **config.openrlhf,
        "rollout.batch_size": prompt_count,
        "rollout.max_new_tokens": cut,
        "data.max_len": cut + 1024,
        "algo.dynamic_filtering_enable": False,  # the same prompts for both
        "actor.num_nodes": 1,
        "actor.num_gpus_per_node": RANKS,
        "vllm.num_engines": PROCESSES,
        "ckpt.save_steps": 1000,
        "reward.remote_url": "stub.py",
    }
    plain, ours = (SimpleNamespace(args=parse_openrlhf_arguments(flags)) for _ in range(2))
    tokenizer = large_tokenizer()
    texts = [f"Question {number}: " + "find the value of x. " * 20 for number in range(prompt_count)]
    rows = [(["d"], [text], ["1"], [None]) for text in texts]
    prompts = Prompts(rows * (rounds + 2))  # an epoch is longer than this
    given = mean, cut, texts, plain.args.rollout.n_samples_per_prompt
    plain_engines, our_engines = ([_StubEngine.remote(*given, own) for _ in range(PROCESSES)] for own in (False, True))
    plain_trainer = PlainTrainer(plain, StubGroup(records=False), None, None, None, plain_engines, tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        steps = (
            plain_step(plain_trainer, SamplesGenerator(plain, prompts, None, tokenizer, plain_engines)),
            our_step(ours, prompts, tokenizer, our_engines, config.meds, RunPaths(Path(folder))),
        )
        found = [[step(number) for step in steps] for number in range(rounds + 1)]
    return found[1:]  # the first is a warm-up


def samples_of(mean: int, cut: int, count: int) -> FlatSamples:
    """Return samples as an asynchronous run sends them, with the engines' log-probs."""
    draws = np.random.default_rng(0)
    drawn = np.clip(draws.lognormal(np.log(mean) - SIGMA**2 / 2, SIGMA, count), 1, cut).astype(int).tolist()

    def sample(length: int) -> Experience:
        ids, one = torch.randint(VOCABULARY, (1, 100 + length)), torch.ones(1)
        mask = torch.nn.functional.pad(torch.ones(1, length, dtype=torch.long), (99, 0))
        texts: dict[str, list[Any]] = {"prompts": ["a question"], "labels": ["1"], "images": [None]}
        outcome = {name: one.clone() for name in ("rewards", "scores", "response_length", "total_length")}
        info = {name: one.clone() for name in ("reward", "score", "response_clip_ratio", "generated_tokens")}
        whole = {"sequences": ids, "attention_mask": torch.ones_like(ids), "action_mask": mask}
        return Experience(**whole, **texts, **outcome, rollout_log_probs=torch.rand(mask.shape), info=info)

    return FlatSamples(map(sample, drawn))


def parts_of_other_runs(mean: int, cut: int, rounds: int, count: int) -> Iterator[Line]:
    """Compare the same rollouts, in turns: sent to the trainer of an asynchronous run, and judged by a critic."""
    given = torch.rand(11, cut), torch.rand(11, cut), torch.ones(11, cut), 1.0, 0.95  # 32,768 tokens at 3,072
    makers = [maker.get_advantages_and_returns for maker in (ExperienceMaker, RemoteExperienceMaker)]
    found = [[timed(make, None, *given)[0] for make in makers] for _ in range(rounds + 1)]
    ours, plain = map(list, zip(*found[1:]))
    yield Line("generalized advantages of 11 responses", ours, "ms", plain)
    samples, queue = samples_of(mean, cut, count), Queue()

    def send(rollouts: list[Experience]) -> None:
        queue.put((rollouts, {}, None, 0.0))
        assert len(queue.get()[0]) == count

    found = [[timed(send, rollouts)[0] for rollouts in (samples, list(samples))] for _ in range(rounds + 1)]
    ours, plain = map(list, zip(*found[1:]))
    yield Line(f"{count:,} samples through a queue", ours, "ms", plain)
    queue.shutdown()


def main(command_line: list[str] | None = None) -> None:
    """Print the tables."""
    arguments = make_parser(__doc__, rounds=3).parse_args(command_line)
    logging.disable(logging.INFO)
    os.environ.update(TQDM_DISABLE="1", RAY_ENABLE_ZERO_COPY_TORCH_TENSORS="1")  # the latter as OpenRLHF sets it
    print(machine())
    with ray_connection(on_cpu=not cpu.has_cuda(), verbose=False):
        for mean, cut, at_most in ((400, 600, 6.0),) if arguments.quick else CASES:
            found = measure(mean, cut, arguments.rounds, 16 if arguments.quick else 512)
            print(f"Responses cut at {cut:,} tokens; ours, compared with OpenRLHF's:\n\n{HEADER}")
            for name in found[0][0]:
                plain, ours = ([both[side][name] for both in found] for side in (0, 1))
                print(Line(name, ours, "s", plain, *((at_most, 0.2) if name == "total" else ())), flush=True)
            for line in parts_of_other_runs(mean, cut, arguments.rounds, 256 if arguments.quick else 8192):
                print(line, flush=True)
            print()


if __name__ == "__main__":
    main()
