"""What a report of a large run costs: seconds and memory to build, bytes of the file, seconds until a browser shows it.

The run is made up. Each prompt has a few wrong answers that the policy keeps giving, each with a signature in the layer
logits, and each frequent for a part of the run only; right answers become more with time. Building is `meds report` in
a process of its own; opening is headless Chromium from a file, until what was asked for is drawn. From the repository's
root (the run takes a minute to write and some 400 MB):

    python -m benchmarks.report --rounds 3
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.table import HEADER, Line, machine, make_parser, timed
from meds_openrlhf.columns import ROLLOUT_SCHEMA
from meds_openrlhf.config import MedsSettings, MemorySettings, RunConfig
from meds_openrlhf.config.method import make_method
from meds_openrlhf.memory.rows import Sharding, make_rows
from meds_openrlhf.memory.shard import MemoryShard, ShardSettings
from meds_openrlhf.memory.snapshot import MemoryFormat, write_format
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.log import sample_texts, write_rollouts
from meds_openrlhf.step_log import StepLog

LAYERS, SAMPLES = 28, 16  # SAMPLES: rollouts of a prompt in a step
NOISY = ("policy_loss", "meds/eigen_ratio_all", "meds/eigen_ratio_step", "meds/eigen_ratio_right_step")
MODES, ONCE, RIGHT = 5, -1, -2  # wrong answers of a prompt that come back; modes of other answers
TEXT = """so the we have that is and of to sum then by let x = y + 2 ( ) because since both sides equal divide multiply
factor therefore number integer value each term which gives substituting back into equation first total we can write
\\frac{1}{2} \\sqrt{3} a^2 + b^2 n(n+1) triangle angle degrees probability ways choose remainder when divided by 7
largest smallest positive root product coefficient polynomial sequence"""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How big a made-up run is; ``visited`` prompts in a step."""

    steps: int = 20
    prompts: int = 24
    visited: int = 8
    characters: int = 700  # of a response, on average
    preset: str = "robust"
    seed: int = 0


class Policy:
    """Draws rollouts: what is likely depends on the prompt and on the time."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.draws = np.random.default_rng(shape.seed)
        ramp = np.linspace(0.3, 3.0, LAYERS)
        self._signatures = self.draws.normal(size=(shape.prompts, MODES, LAYERS)) * ramp + 2 * ramp
        self._peaks = self.draws.uniform(-0.2, 1.2, size=(shape.prompts, MODES))  # in time
        self._easy = self.draws.uniform(0.15, 0.85, size=shape.prompts)
        words = self.draws.choice(TEXT.split(), size=60_000)
        words[::31] = "\n"
        self._text = " ".join(words.tolist())

    def rollouts(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Return prompts and modes (n,) and layer logits (n, N) of step ``number``."""
        shape, when = self.shape, number / self.shape.steps
        prompt = np.repeat(np.arange((number - 1) * shape.visited, number * shape.visited) % shape.prompts, SAMPLES)
        weights = np.exp(-0.5 * ((self._peaks[prompt] - when) / 0.25) ** 2) + 1e-3
        cumulative = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
        mode = (self.draws.random((len(prompt), 1)) > cumulative).sum(axis=1).clip(0, MODES - 1)
        mode[self.draws.random(len(prompt)) < 0.12] = ONCE
        mode[self.draws.random(len(prompt)) < self._easy[prompt] * (0.35 + 0.5 * when)] = RIGHT
        deviation = self.draws.normal(size=(len(prompt), LAYERS)) * np.where(mode == ONCE, 3.0, 0.08)[:, None]
        return prompt, mode, (self._signatures[prompt, mode.clip(0)] + deviation).astype(np.float32)

    def answers(self, prompt: NDArray[np.int64], mode: NDArray[np.int64]) -> tuple[list[str], list[str]]:
        """Return the answer and the response (n,) of each rollout."""
        once = self.draws.integers(100, 999, size=len(prompt))
        answers = [str(number) for number in np.where(mode == ONCE, once, 7 * prompt + 20 + 3 * mode).tolist()]
        ends = (self.shape.characters * self.draws.normal(1.0, 0.25, size=len(prompt)).clip(0.2, 2.0)).astype(int)
        begins = self.draws.integers(0, len(self._text) // 2, size=len(prompt))
        return answers, [
            f"{self._text[begin : begin + end]}\n\nThe answer is $\\boxed{{{answer}}}$."
            for begin, end, answer in zip(begins.tolist(), ends.tolist(), answers)
        ]


def write_run(root: Path, shape: Shape) -> RunPaths:
    """Fill the folder ``root`` and return its paths."""
    paths, policy = RunPaths(root), Policy(shape)
    root.mkdir(parents=True, exist_ok=True)
    flags = {"actor.model_name_or_path": "Qwen/Qwen2.5-Math-7B", "algo.advantage.estimator": "group_norm"}
    meds = MedsSettings(run_dir=str(root), memory=MemorySettings(preset=shape.preset, shards=1))
    paths.config.write_text(RunConfig(meds, flags).as_yaml())
    write_format(paths.memory, MemoryFormat(1, LAYERS, {"architecture": "Qwen2", "layers": LAYERS}))
    shard = MemoryShard(paths.memory, Sharding(0, 1), ShardSettings(LAYERS, method=make_method(shape.preset)))
    evaluations, lines = StepLog(paths.evaluations), []
    for number in range(1, shape.steps + 1):
        table = _step(number, policy, shard)
        write_rollouts(paths, sample_texts(table))
        right, taken = (np.asarray(table.column(name), float) for name in ("correct", "penalty"))
        lines.append({"step": number, **_metrics(right.mean(), taken, policy.draws)})
        if number % max(shape.steps // 10, 1) == 0:
            passed = {f"eval_aime24_pass{k}": 1 - (1 - float(right.mean())) ** k for k in (1, 2, 4, 8)}
            evaluations.append(number, passed)
    paths.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    shard.close()
    return paths


def _step(number: int, policy: Policy, shard: MemoryShard) -> pa.Table:
    """Store the wrong rollouts of a step; return all of them as rows of `ROLLOUT_SCHEMA`."""
    prompt, mode, logits = policy.rollouts(number)
    answers, responses = policy.answers(prompt, mode)
    keys = [f"math-{each:05d}" for each in prompt.tolist()]
    correct, wrong = mode == RIGHT, np.flatnonzero(mode != RIGHT)
    answer = shard.observe(number, make_rows(wrong, [keys[row] for row in wrong], correct[wrong], logits[wrong]))
    shard.recluster()
    labels, sizes = np.full(len(keys), -2, np.int32), np.zeros(len(keys), np.int32)
    labels[answer.sample], sizes[answer.sample] = answer.label, answer.size
    penalty = np.where(sizes > 0, np.minimum(0.1 * np.log(sizes + 1.0), 0.2), 0.0)
    columns = {
        "step": np.full(len(keys), number),
        "sample": np.arange(len(keys)),
        "prompt": keys,
        "prompt_text": pa.array([f"Problem {each}: find {TEXT}." for each in prompt.tolist()]).dictionary_encode(),
        "ground_truth": pa.nulls(len(keys), pa.string()),
        "response": responses,
        "answer": answers,
        "answer_start": [len(text) - len(answer) - 3 for text, answer in zip(responses, answers)],
        "correct": correct,
        "reward": correct.astype(float),
        "shaped_reward": correct - penalty,
        "penalty": penalty,
        "label": pa.array(labels, mask=labels == -2),
        "cluster_size": sizes,
        "tokens": [len(text) // 4 for text in responses],
        "truncated": np.zeros(len(keys), bool),
    }
    arrays = [pa.array(columns[field.name]).cast(field.type, safe=False) for field in ROLLOUT_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=ROLLOUT_SCHEMA)


def _metrics(right: float, taken: NDArray[np.float64], draws: np.random.Generator) -> dict[str, float]:
    noise = dict(zip(NOISY, draws.normal(1.0, 0.1, size=len(NOISY)).tolist()))
    shaped = {"meds/reward_raw": right, "meds/reward_shaped": right - taken.mean(), "meds/accuracy": right}
    times = {"timing/generation": 60.0, "timing/ppo_train": 40.0, "timing/step_total": 122.0}
    penalties = {"meds/penalty_mean": taken.mean(), "meds/penalized_share": float((taken > 0).mean())}
    return {**noise, **shaped, **penalties, **times, "actor_lr": 1e-6}


FULL = Shape(steps=200, prompts=5_000, visited=512, characters=1_500)
QUICK = Shape(steps=4, prompts=8, visited=4, characters=200)


def measure_browser(report: Path, rounds: int) -> Line:
    """Measure the seconds until the first page, the themes of all errors, is there."""
    program = shutil.which("chromium")
    if program is None:
        raise FileNotFoundError("no chromium on the PATH; apt-get install chromium")
    from playwright.sync_api import sync_playwright

    seconds = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        for _ in range(rounds):
            page = browser.new_page()
            page.set_default_timeout(60_000)
            started = time.perf_counter()
            page.goto(report.as_uri())
            page.wait_for_selector(".theme")
            seconds.append(time.perf_counter() - started)
            page.close()
    return Line("open", seconds, "s", at_most=2)


def main(command_line: list[str] | None = None) -> None:
    """Print the table."""
    arguments = make_parser(__doc__, rounds=3).parse_args(command_line)
    print(machine(), HEADER, sep="\n")
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", QUICK if arguments.quick else FULL).root
        report = Path(folder) / "report.html"
        command = [sys.executable, "-m", "meds_openrlhf.cli.main", "report", str(run), "--output", str(report)]
        build = partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
        print(Line("build", [timed(build)[0] / 1e3 for _ in range(arguments.rounds)], "s", at_most=30))
        print(Line("build, peak memory", [resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6], "GB"))
        print(Line("file", [report.stat().st_size / 1e6], "MB", at_most=20))
        print(measure_browser(report, arguments.rounds))


if __name__ == "__main__":
    main()
