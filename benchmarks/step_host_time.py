"""Seconds that GPUs wait for the driver in one training step: OpenRLHF's own classes, and ours with the memory.

Both drivers run a whole step, in turns: they ask the engines for responses, turn these into experience, compute
advantages, and hand mini-batches to the ranks. Engines and ranks are Ray actors that return at once what real ones
would, of the size that real ones have; everything else is real. From the repository's root:

    python -m benchmarks.step_host_time --rounds 3
    python -m benchmarks.step_host_time --lengths 1100,0.6,3072 --json times.json
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import ray

from meds_openrlhf.training import cpu

if not cpu.has_cuda():
    cpu.install()  # before anything of OpenRLHF's

from openrlhf.trainer.ppo_trainer import BasePPOTrainer
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.launcher import RayActorGroup

from benchmarks.large_tokenizer import large_tokenizer
from benchmarks.stub_models import Lengths, StubEngine, StubRank
from meds_openrlhf.config import load_config
from meds_openrlhf.features.answer import AnswerOpenings
from meds_openrlhf.features.settings import transform_of
from meds_openrlhf.memory.pool import MemoryPool, start_shards
from meds_openrlhf.memory.shard import ShardSettings
from meds_openrlhf.memory.snapshot import MemoryFormat
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.response_texts import ResponseReader
from meds_openrlhf.tracking.rollout_recorder import RolloutRecorder
from meds_openrlhf.training import trainer as trainer_module
from meds_openrlhf.training.batching import even_batch
from meds_openrlhf.training.context import TrainerContext
from meds_openrlhf.training.driver.ray_connection import ray_connection
from meds_openrlhf.training.engines.engine_fleet import EngineFleet
from meds_openrlhf.training.engines.rollout import RolloutGenerator
from meds_openrlhf.training.experience import MemoryExperienceMaker
from meds_openrlhf.training.preparation.arguments import parse_openrlhf_arguments
from meds_openrlhf.training.run_control import start_run_control
from meds_openrlhf.training.trainer import EngineSync, MedsTraining

CONFIG = Path("configs/qwen2.5-math-7b/meds.yaml")
LAYERS = 28
RANKS, PROCESSES = 8, 2  # ranks of the policy; the processes that play them, and the engines
LENGTHS = ("1100,0.6,3072", "2500,0.6,7168")  # mean, sigma of the logarithm, cut
AT_MOST = {"3072": 6.0, "7168": 15.0}  # seconds
AT_MOST_RATIO = 0.2


class PhaseTimes:
    """Seconds by phase of the rounds so far, one value per round. Nested phases are counted in both."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, float]] = []

    @contextmanager
    def round(self) -> Iterator[None]:
        """Start a round; the phase "total" is all of it."""
        self.rounds.append(defaultdict(float))
        with self.phase("total"):
            yield

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to a phase of this round."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.rounds[-1][name] += time.perf_counter() - started

    def watch(self, target: Any, method: str, name: str) -> None:
        """Count the calls of an object's method as a phase."""
        plain = getattr(target, method)

        def watched(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name):
                return plain(*args, **kwargs)

        setattr(target, method, watched)

    def medians(self) -> dict[str, float]:
        """The median seconds of each phase."""
        names = dict.fromkeys(name for phases in self.rounds for name in phases)
        return {name: median(phases.get(name, 0.0) for phases in self.rounds) for name in names}


class StubGroup(RayActorGroup):
    """OpenRLHF's group of ranks, with `StubRank` actors; `append` is the hand-over of the mini-batches."""

    def __init__(self, ranks: list[Any], times: PhaseTimes) -> None:
        self._actor_handlers = ranks
        self.duplicate_actors = 1
        self._times = times

    def async_run_method_batch(self, method_name: str, **kwargs: Any) -> Any:
        """Call OpenRLHF's method."""
        with self._times.phase("  hand-over to the ranks") if method_name == "append" else nullcontext():
            return super().async_run_method_batch(method_name, **kwargs)


class PlainTrainer(BasePPOTrainer):  # type: ignore[misc]
    """OpenRLHF's trainer; it logs nothing here."""

    def save_logs_and_checkpoints(self, *_: Any, **__: Any) -> None:
        """Do nothing: no tracker is set."""


class OurTrainer(MedsTraining, PlainTrainer, EngineSync):
    """Our trainer, without what concerns data sets and evaluation."""


def step_of(trainer: Any, generator: Any, times: PhaseTimes) -> Callable[[int], None]:
    """A function that runs one step."""
    times.watch(generator, "generate_samples", "generation calls")
    maker = trainer.experience_maker
    times.watch(maker, "split_rollout_samples", "  padding to micro-batches")
    times.watch(maker, "make_experience", "  log-probs from the ranks")
    times.watch(maker, "compute_advantages_and_returns", "  advantages and returns")

    def step(number: int) -> None:
        with times.round():
            samples, *_ = generator.generate_samples(max_len=trainer.args.data.max_len)
            with times.phase("train step"):
                status, _ = trainer.train_step(samples, number)
            trainer.save_logs_and_checkpoints(number + 1, status, {})

    return step


def plain_step(args: SimpleNamespace, prompts: list[Any], tokenizer: Any, models: Any, times: PhaseTimes) -> Any:
    """A step of OpenRLHF's classes alone."""
    strategy = SimpleNamespace(args=args)
    engines, ranks = models
    trainer = PlainTrainer(strategy, StubGroup(ranks, times), None, None, None, engines, tokenizer)
    generator = SamplesGenerator(strategy, prompts, None, tokenizer, engines)
    return step_of(trainer, generator, times)


def our_step(
    args: SimpleNamespace, prompts: list[Any], tokenizer: Any, models: Any, times: PhaseTimes, config: Any, folder: Path
) -> Any:
    """A step of our classes, with memory, rollout log and mini-batches of whole prompts."""
    strategy, paths, meds = SimpleNamespace(args=args), RunPaths(folder), config.meds
    engines, ranks = models
    transform = transform_of(meds.features, LAYERS)
    memory_format = MemoryFormat(PROCESSES, LAYERS, {"model": "stub"})
    settings = ShardSettings(LAYERS, transform, meds.memory.method)
    shards = start_shards(paths.memory, memory_format, settings, [{"num_cpus": 0}] * PROCESSES)
    pool = MemoryPool(shards, paths.memory.root, memory_format)
    pool.restore(None)
    tokenizer.save_pretrained(paths.model)
    reader = ResponseReader.of(str(paths.model), AnswerOpenings(meds.features.answer_openings), paths.tokenizer)
    recorder = ray.remote(num_cpus=0)(RolloutRecorder).remote(paths, reader, meds.tracking.rollouts)
    control = start_run_control(paths)
    context = TrainerContext(meds, paths, control, pool, transform, True, recorder, first_step=0)
    trainer = OurTrainer(
        context=context,
        strategy=strategy,
        actor_model_group=StubGroup(ranks, times),
        critic_model_group=None,
        reward_model_group=None,
        reference_model_group=None,
        vllm_engines=engines,
        tokenizer=tokenizer,
    )
    fleet = EngineFleet(engines, print)
    generator = RolloutGenerator(
        strategy=strategy,
        prompts_dataloader=prompts,
        eval_dataloader=None,
        tokenizer=tokenizer,
        fleet=fleet,
        sync_weights=None,
        even_batch=even_batch(args),
    )
    maker = trainer.experience_maker
    assert isinstance(maker, MemoryExperienceMaker)
    times.watch(maker, "_collect", "  rows for the memory")
    times.watch(maker, "_ask", "  the memory's answer")
    times.watch(maker, "_diversity_of", "  eigen ratios")
    times.watch(trainer_module, "by_prompts", "  mini-batches of whole prompts")
    times.watch(trainer_module, "step_rollouts", "  rollout log")
    step = step_of(trainer, generator, times)

    def settled(number: int) -> None:
        step(number)
        trainer._rollouts.flush()  # not timed: on a cluster it happens on other cores

    return settled


@contextmanager
def peak_memory() -> Iterator[Callable[[], float]]:
    """Sample this process's resident memory; the function returns the peak so far in GB."""
    peak, ended = [0], threading.Event()

    def sample() -> None:
        while not ended.wait(0.05):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            peak[0] = max(peak[0], pages * 4096)

    threading.Thread(target=sample, daemon=True).start()
    yield lambda: peak[0] / 1e9
    ended.set()


def measure(lengths: Lengths, rounds: int, prompt_count: int) -> dict[str, tuple[PhaseTimes, float]]:
    """The times of both drivers, and the peak memory of this process in GB, by name."""
    config = load_config(CONFIG)
    flags = {
        **config.openrlhf,
        "rollout.batch_size": prompt_count,
        "rollout.max_new_tokens": lengths.cut,
        "data.max_len": lengths.cut + 1024,
        "algo.dynamic_filtering_enable": False,  # the same prompts for both
        "actor.num_nodes": 1,
        "actor.num_gpus_per_node": RANKS,
        "vllm.num_engines": PROCESSES,
        "ckpt.save_steps": 1000,
        "reward.remote_url": "stub.py",
    }
    parse = partial(parse_openrlhf_arguments, flags)
    samples = parse().rollout.n_samples_per_prompt
    tokenizer = large_tokenizer()
    texts = [f"Question {number}: " + "find the value of x. " * 20 for number in range(prompt_count)]
    prompts = [(["d"], [text], ["1"], [None]) for text in texts] * (rounds + 2)  # an epoch is longer than this
    found: dict[str, tuple[PhaseTimes, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        given = lengths, texts, samples
        ranks = _spread([StubRank.remote(LAYERS) for _ in range(PROCESSES)])
        plain_models = [StubEngine.remote(*given) for _ in range(PROCESSES)], ranks
        our_models = (
            [StubEngine.remote(*given) for _ in range(PROCESSES)],
            _spread([StubRank.remote(LAYERS, records=True) for _ in range(PROCESSES)]),
        )
        ray.get([engine.in_arrays.remote() for engine in our_models[0]])
        times = {"openrlhf": PhaseTimes(), "ours": PhaseTimes()}
        run = RunPaths(Path(folder))
        ours = our_step(parse(), prompts, tokenizer, our_models, times["ours"], config, run.root)
        steps = {"openrlhf": plain_step(parse(), prompts, tokenizer, plain_models, times["openrlhf"]), "ours": ours}
        peaks: dict[str, float] = dict.fromkeys(steps, 0.0)
        for number in range(rounds + 1):  # the first one only warms up
            for name, step in steps.items():
                with peak_memory() as peak:
                    step(number)
                peaks[name] = max(peaks[name], peak())
        for name, times_of_run in times.items():
            times_of_run.rounds = times_of_run.rounds[1:]
            found[name] = times_of_run, peaks[name]
    return found


def _spread(processes: list[Any]) -> list[Any]:
    return [processes[rank * len(processes) // RANKS] for rank in range(RANKS)]


def table(cut: int, found: dict[str, tuple[PhaseTimes, float]]) -> str:
    """A Markdown table of seconds by phase."""
    ours, plain = (found[name][0].medians() for name in ("ours", "openrlhf"))
    lines = [f"| responses cut at {cut:,} | OpenRLHF, s | ours, s | ratio |", "|---|---|---|---|"]
    top = ("generation calls", "train step", "total")
    inside = [name for name in {**plain, **ours} if name not in top]
    for name in [*top[:2], *inside, "total"]:
        cells = [f"{measured[name]:.2f}" if name in measured else "" for measured in (plain, ours)]
        ratio = f"{ours[name] / plain[name]:.3f}" if name in plain and name in ours and plain[name] else ""
        lines.append(
            f"| {'&nbsp;&nbsp;' if name.startswith(' ') else ''}{name.strip()} | {' | '.join(cells)} | {ratio} |"
        )
    lines.append(f"| peak memory of the driver, GB | {found['openrlhf'][1]:.1f} | {found['ours'][1]:.1f} | |")
    bound, ratio = AT_MOST.get(str(cut)), ours["total"] / plain["total"]
    if bound is not None:
        verdict = "met" if ours["total"] <= bound and ratio <= AT_MOST_RATIO else "missed"
        lines.append(f"| at most {bound:g} s and {AT_MOST_RATIO:g} of OpenRLHF's | | {verdict} | |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=512, help="of 16 responses each")
    parser.add_argument("--lengths", action="append", metavar="MEAN,SIGMA,CUT", help="log-normal lengths of responses")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the medians of the totals here")
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    os.environ["TQDM_DISABLE"] = "1"
    os.environ["RAY_ENABLE_ZERO_COPY_TORCH_TENSORS"] = "1"  # as OpenRLHF sets it for its trainer
    totals = {}
    with ray_connection(on_cpu=not cpu.has_cuda(), verbose=False):
        for text in arguments.lengths or LENGTHS:
            lengths = Lengths.parse(text)
            found = measure(lengths, arguments.rounds, arguments.prompts)
            print(table(lengths.cut, found), end="\n\n", flush=True)
            totals[str(lengths.cut)] = {name: times.medians()["total"] for name, (times, _) in found.items()}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(totals, indent=1) + "\n")


if __name__ == "__main__":
    main()
