"""A made-up run folder of any size, in the files that a real run writes, for the report's tests and benchmark.

Each prompt has a few wrong answers that the policy keeps giving, each with a signature of its own in the layer logits,
and each in fashion for a part of the run only; right answers become more with time. From the repository's root:

    python -m benchmarks.synthetic_run /tmp/run --steps 40 --prompts 60
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.config import MedsSettings, MemorySettings, RunConfig
from meds_openrlhf.config.method import make_method
from meds_openrlhf.memory.rows import Sharding, make_rows, shard_of
from meds_openrlhf.memory.shard import MemoryShard, ShardSettings
from meds_openrlhf.memory.snapshot import ANSWERS, MemoryFormat, write_format
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.rollout_log import ROLLOUT_SCHEMA, sample_texts, write_rollouts
from meds_openrlhf.tracking.step_log import StepLog

MODES = 5  # wrong answers of a prompt that come back
TEXT = """so the we have that is and of to sum then by let x = y + 2 ( ) because since both sides equal divide multiply
factor therefore number integer value each term which gives substituting back into equation first total we can write
\\frac{1}{2} \\sqrt{3} a^2 + b^2 n(n+1) triangle angle degrees probability ways choose remainder when divided by 7
largest smallest positive root product coefficient polynomial sequence"""
WORDS = TEXT.split()


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How big a made-up run is; ``visited`` prompts a step, ``samples`` rollouts of each. ``texts``: sampled or all."""

    steps: int = 20
    prompts: int = 24
    visited: int = 8
    samples: int = 16
    layers: int = 28
    characters: int = 700  # of a response, on average
    preset: str = "robust"
    seed: int = 0
    texts: str = "sampled"
    step_offset: int = 0
    memory: bool = True
    log: bool = True


@dataclass(frozen=True)
class Step:
    """The n rollouts of one step, in arrays (n,); ``mode`` is -1 for what comes once, -2 for a right answer."""

    prompt: NDArray[np.int64]
    mode: NDArray[np.int64]
    answer: list[str]
    logits: NDArray[np.float32]  # (n, N)

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whose answers are right."""
        return self.mode == -2


class Policy:
    """Draws rollouts: what is likely depends on the prompt and on the time."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.generator = np.random.default_rng(shape.seed)
        ramp = np.linspace(0.3, 3.0, shape.layers)
        self._modes = self.generator.normal(size=(shape.prompts, MODES, shape.layers)) * ramp + 2 * ramp
        self._peaks = self.generator.uniform(-0.2, 1.2, size=(shape.prompts, MODES))
        self._easy = self.generator.uniform(0.15, 0.85, size=shape.prompts)
        self._text = self._corpus()

    def step(self, number: int) -> Step:
        """The rollouts of step ``number``, from 1 up."""
        shape, when = self.shape, number / self.shape.steps
        first = (number - 1) * shape.visited
        visited = np.arange(first, first + shape.visited) % shape.prompts
        prompt = np.repeat(visited, shape.samples)
        weights = np.exp(-0.5 * ((self._peaks[prompt] - when) / 0.25) ** 2) + 1e-3
        cumulative = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
        mode = (self.generator.random((len(prompt), 1)) > cumulative).sum(axis=1).clip(0, MODES - 1)
        mode[self.generator.random(len(prompt)) < 0.12] = -1
        mode[self.generator.random(len(prompt)) < self._easy[prompt] * (0.35 + 0.5 * when)] = -2
        return Step(prompt, mode, self._answers(prompt, mode), self._logits(prompt, mode))

    def _answers(self, prompt: NDArray[np.int64], mode: NDArray[np.int64]) -> list[str]:
        once = self.generator.integers(100, 999, size=len(prompt))
        numbers = np.where(mode == -2, 7 * prompt + 11, np.where(mode == -1, once, 7 * prompt + 20 + 3 * mode))
        return [str(number) for number in numbers.tolist()]

    def _logits(self, prompt: NDArray[np.int64], mode: NDArray[np.int64]) -> NDArray[np.float32]:
        deviation = self.generator.normal(size=(len(prompt), self.shape.layers))
        spread = np.where(mode == -1, 3.0, 0.08)[:, None]
        logits: NDArray[np.float32] = (self._modes[prompt, mode.clip(0)] + spread * deviation).astype(np.float32)
        return logits

    def responses(self, step: Step) -> list[str]:
        """A text (n,) for each rollout, its answer in a box near the end."""
        lengths = self.generator.normal(self.shape.characters, self.shape.characters / 4, size=len(step.prompt))
        begins = self.generator.integers(0, len(self._text) // 2, size=len(step.prompt))
        lengths = lengths.clip(40, len(self._text) // 2).astype(int)
        return [
            f"{self._text[begin : begin + length]}\n\nThe answer is $\\boxed{{{answer}}}$."
            for begin, length, answer in zip(begins.tolist(), lengths.tolist(), step.answer)
        ]

    def question(self, prompt: int) -> str:
        """What a prompt says, as the engines get it."""
        generator = np.random.default_rng([self.shape.seed, prompt])
        words = " ".join(generator.choice(WORDS, size=int(generator.integers(20, 60))))
        head = "<|im_start|>system\nPlease reason step by step.<|im_end|>\n<|im_start|>user\n"
        return f"{head}Problem {prompt}: find {words}.<|im_end|>\n<|im_start|>assistant\n"

    def _corpus(self) -> str:
        words = self.generator.choice(WORDS, size=max(60_000, self.shape.characters))
        numbers = self.generator.integers(0, 10_000, size=len(words))
        mixed = np.where(self.generator.random(len(words)) < 0.2, numbers.astype(str), words)
        mixed[::31] = "\n"
        return " ".join(mixed.tolist())


def write_run(root: Path, shape: Shape) -> RunPaths:
    """Fill the folder ``root`` and return its paths."""
    paths, policy = RunPaths(root), Policy(shape)
    root.mkdir(parents=True, exist_ok=True)
    paths.config.write_text(_config(root, shape).as_yaml())
    log, evaluations = StepLog(paths.metrics), StepLog(paths.evaluations)
    shard = _shard(paths, shape) if shape.memory else None
    lines = []
    for number in range(1, shape.steps + 1):
        step = policy.step(number)
        labels, sizes = _remember(shard, step, number + shape.step_offset) if shard else _nothing(step)
        penalty = np.where(sizes > 0, np.minimum(0.1 * np.log(sizes + 1.0), 0.2), 0.0)
        if shape.log:
            table = rollout_table(number, step, policy, labels, sizes, penalty)
            write_rollouts(paths, table if shape.texts == "all" else sample_texts(table))
        lines.append({"step": number, **_metrics(step, penalty, number / shape.steps, policy.generator)})
        if number % max(shape.steps // 10, 1) == 0:
            right = float(step.correct.mean())
            ks = {f"eval_aime24_pass{k}": 1 - (1 - right) ** k for k in (1, 2, 4, 8)}
            evaluations.append(number, {**ks, "eval_aime24_response_length_mean": 800.0})
    paths.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert len(log.read()) == shape.steps
    if shard:
        shard.close()
    return paths


def _config(root: Path, shape: Shape) -> RunConfig:
    memory = MemorySettings(preset=shape.preset, shards=1)
    flags = {
        "actor.model_name_or_path": "Qwen/Qwen2.5-Math-7B", "actor.adam.lr": 1e-6, "data.max_len": 4096,
        "data.prompt_dataset": "data/train.jsonl", "rollout.batch_size": shape.visited,
        "rollout.n_samples_per_prompt": shape.samples, "train.batch_size": shape.visited * shape.samples,
        "algo.advantage.estimator": "group_norm", "algo.kl.init_coef": 0, "algo.dynamic_filtering_enable": False,
    }  # fmt: skip
    return RunConfig(MedsSettings(run_dir=str(root), memory=memory, enabled=shape.memory), flags)


def _shard(paths: RunPaths, shape: Shape) -> MemoryShard:
    answers = shape.preset == "answers"
    layers = 2 if answers else shape.layers
    model = ANSWERS if answers else {"architecture": "Qwen2", "layers": layers}
    write_format(paths.memory, MemoryFormat(1, layers, model, step_offset=shape.step_offset))
    settings = ShardSettings(layers=layers, method=make_method(shape.preset))
    return MemoryShard(paths.memory, Sharding(0, 1), settings)


def _remember(shard: MemoryShard, step: Step, number: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Store the wrong rollouts; the label and size (n,) that each got."""
    wrong = np.flatnonzero(~step.correct)
    keys = [key_of(prompt) for prompt in step.prompt[wrong].tolist()]
    assert all(shard_of(key, 1) == 0 for key in keys)
    rows = step.logits[wrong]
    if shard._settings.layers != rows.shape[1]:
        rows = np.array([[float(step.answer[i]), 1.0] for i in wrong], dtype=np.float32)
    answer = shard.observe(number, make_rows(wrong, keys, np.zeros(len(wrong), bool), rows))
    shard.recluster()
    labels, sizes = _nothing(step)
    labels[answer.sample], sizes[answer.sample] = answer.label, answer.size
    return labels, sizes


def _nothing(step: Step) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    return np.full(len(step.prompt), -2, np.int32), np.zeros(len(step.prompt), np.int32)


def rollout_table(
    number: int,
    step: Step,
    policy: Policy,
    labels: NDArray[np.int32],
    sizes: NDArray[np.int32],
    penalty: NDArray[np.float64],
) -> pa.Table:
    """The rows of `ROLLOUT_SCHEMA` of one step."""
    responses, reward = policy.responses(step), step.correct.astype(np.float32)
    texts = {prompt: policy.question(prompt) for prompt in np.unique(step.prompt).tolist()}
    columns = {
        "step": np.full(len(responses), number, np.int32),
        "sample": np.arange(len(responses), dtype=np.int32),
        "prompt": [key_of(prompt) for prompt in step.prompt.tolist()],
        "prompt_text": pa.array([texts[prompt] for prompt in step.prompt.tolist()]).dictionary_encode(),
        "ground_truth": pa.nulls(len(responses), pa.string()),
        "response": responses,
        "answer": step.answer,
        "answer_start": [len(text) - len(answer) - 3 for text, answer in zip(responses, step.answer)],
        "correct": step.correct,
        "reward": reward,
        "shaped_reward": reward - penalty.astype(np.float32),
        "penalty": penalty.astype(np.float32),
        "label": pa.array(labels, mask=labels == -2),
        "cluster_size": sizes,
        "tokens": np.array([len(text) // 4 for text in responses], np.int32),
        "truncated": np.zeros(len(responses), bool),
    }
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in ROLLOUT_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=ROLLOUT_SCHEMA)


def key_of(prompt: int) -> str:
    """The key of prompt number ``prompt``."""
    return f"math-{prompt:05d}"


def _metrics(step: Step, penalty: NDArray[np.float64], when: float, generator: np.random.Generator) -> dict[str, float]:
    right = float(step.correct.mean())
    noise = [float(value) for value in generator.normal(size=12)]
    taken = float(penalty.mean())
    ratio = 0.55 + 0.2 * when
    return {
        "policy_loss": -0.01 + 0.01 * noise[0], "kl": 0.002 * when, "entropy_loss": 0.9 - 0.5 * when + 0.02 * noise[1],
        "actor_grad_norm": 0.5 + 0.05 * noise[2], "actor_lr": 1e-6,
        "rollout/reward_mean": right, "rollout/response_length_mean": 700 + 200 * when + 20 * noise[3],
        "rollout/truncated_rate": 0.05 * when, "meds/reward_raw": right, "meds/reward_shaped": right - taken,
        "meds/accuracy": right, "meds/penalty_mean": taken, "meds/penalized_share": float((penalty > 0).mean()),
        "meds/rows": 1000 * when, "meds/clusters": 120 * when, "meds/noise_share": 0.2 - 0.1 * when,
        "meds/bytes": 1e6 * when, "meds/eigen_ratio_all": ratio, "meds/eigen_ratio_window": ratio + 0.01 * noise[4],
        "meds/eigen_ratio_step": ratio + 0.04 * noise[5], "meds/eigen_ratio_right_step": ratio - 0.1 + 0.04 * noise[6],
        "meds/time_assign_ms": 5 + abs(noise[7]), "meds/time_append_ms": 3 + abs(noise[8]),
        "timing/generation": 60 + 3 * noise[9], "timing/make_experience": 18 + noise[10],
        "timing/ppo_train": 40 + noise[11], "timing/broadcast": 4.0,
        "timing/step_total": 122 + 3 * noise[9] + noise[10] + noise[11],
    }  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """Write a run from the command line."""
    parser = argparse.ArgumentParser(description="Write a made-up run folder.")
    parser.add_argument("root", type=Path)
    for field in dataclasses.fields(Shape):
        kind = {"int": int, "str": str}.get(str(field.type))
        if kind:
            parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    given = vars(parser.parse_args(argv))
    root = given.pop("root")
    write_run(root, Shape(**given))


if __name__ == "__main__":
    main()
