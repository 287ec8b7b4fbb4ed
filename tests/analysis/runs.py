"""Small finished runs for the tests of what reads them, with real shards and logs: any, arithmetic, a tiny model."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from meds_openrlhf.arithmetic.problems import MISTAKES, NO_MISTAKE, make_problem, work, write_solution
from meds_openrlhf.columns import ROLLOUT_SCHEMA
from meds_openrlhf.data.questions import qwen_math_prompt
from meds_openrlhf.evaluation.request import Problem, Settings, problems_hash, write_settings
from meds_openrlhf.memory.rows import make_rows
from meds_openrlhf.memory.shard import ShardSettings
from meds_openrlhf.memory.stored import open_memory
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.log import write_rollouts
from meds_openrlhf.shaping.penalty import cluster_penalty
from meds_openrlhf.step_log import StepLog
from tests.judge.judge_server import Request, Response
from tests.memory.written import WrittenMemory

LAYERS = 8
OPENING = "\\boxed{"
# Each with three kinds of mistake; two of them give the same wrong answer to the first problem.
EXPRESSIONS = ("(4-3)*5-3", "4*(6-2)", "(6-3)*3-6")
TEMPTING = ("ignored brackets", "flipped subtraction", "off by one")
PROBLEMS = [Problem(f"p{number}", f"Question {number}?", "1") for number in range(5)]
COMMAND = ["tiny", "--benchmarks", "problems.jsonl", "--n", "4"]  # of analysis.paper


@dataclass(frozen=True)
class Rollout:
    """One rollout; ``logits`` None: the memory has no row of it. A null ``text`` is one that was not sampled."""

    prompt: str
    answer: str | None
    correct: bool = False
    logits: Sequence[float] | None = None
    text: str | None = ""
    prompt_text: str = ""


def kind(number: int, spread: float = 0.0, seed: int = 0) -> list[float]:
    """Layer logits of one kind of error: far from those of other kinds, ``spread`` around its middle."""
    middle = np.random.default_rng(1000 + number).normal(size=LAYERS) * 5
    return (middle + spread * np.random.default_rng(seed).normal(size=LAYERS)).tolist()  # type: ignore[no-any-return]


def write_run(root: Path, steps: Sequence[Sequence[Rollout]]) -> Path:
    """A run of these steps, numbered from 1."""
    root.mkdir(parents=True, exist_ok=True)
    memory = WrittenMemory(root / "memory", settings=ShardSettings(layers=LAYERS))
    for step, rollouts in enumerate(steps, start=1):
        memory.step = step - 1
        rows = _remembered(rollouts)
        if len(rows):
            memory.observe(rows)
    memory.stop()
    answers = {
        (step, row["sample"]): (row["label"], row["cluster_size"])
        for step, rows in open_memory(root).rows_by_step()
        for row in rows.to_pylist()
    }
    for step, rollouts in enumerate(steps, start=1):
        _log(root, step, rollouts, answers)
    return root


def write_log(root: Path, steps: Mapping[int, Mapping[str, Sequence[str | None]]]) -> Path:
    """A run's folder with a log alone: responses by step and prompt, all of them wrong and in no cluster."""
    for step, texts in steps.items():
        rollouts = [
            Rollout(prompt, None, text=text, prompt_text=f"Question {prompt}?")
            for prompt, responses in texts.items()
            for text in responses
        ]
        _log(root, step, rollouts, {})
    return root


def _log(
    root: Path, step: int, rollouts: Sequence[Rollout], stored: Mapping[tuple[int, int], tuple[int | None, int]]
) -> None:
    rows = [_row(step, sample, one, stored.get((step, sample))) for sample, one in enumerate(rollouts)]
    write_rollouts(RunPaths(root), pa.Table.from_pylist(rows, ROLLOUT_SCHEMA))


def _remembered(rollouts: Sequence[Rollout]) -> pa.RecordBatch:
    kept = [(sample, one) for sample, one in enumerate(rollouts) if one.logits is not None]
    logits = np.array([one.logits for _, one in kept], np.float32).reshape(len(kept), LAYERS)
    return make_rows([s for s, _ in kept], [o.prompt for _, o in kept], [o.correct for _, o in kept], logits)


def _row(step: int, sample: int, one: Rollout, stored: tuple[int | None, int] | None) -> dict[str, object]:
    label, size = stored or (None, 0)
    reward = 1.0 if one.correct else 0.0
    penalty = 0.0 if one.correct else float(cluster_penalty(np.array([size]), alpha=0.1, beta=0.2)[0])
    text = f"{OPENING}{one.answer}}}" if one.text == "" else one.text
    return {
        "step": step,
        "sample": sample,
        "prompt": one.prompt,
        "prompt_text": one.prompt_text or f"Work out {one.prompt}.",
        "ground_truth": f"truth of {one.prompt}",
        "response": text,
        "answer": one.answer,
        "answer_start": None if text is None or one.answer is None else max(text.rfind(one.answer), 0),
        "correct": one.correct,
        "reward": reward,
        "shaped_reward": reward - penalty,
        "penalty": penalty,
        "label": label,
        "cluster_size": size,
        "tokens": 20,
        "truncated": False,
    }


def write_arithmetic_run(root: Path, *, shuffled: bool = False, texts: bool = True) -> Path:
    """A run of the demo's task in which every response makes one known mistake.

    Logits tell the mistakes apart, unless ``shuffled``: then they are of a kind drawn at random.
    """
    generator = random.Random(7)
    made = [
        [
            _rollout(expression, name, generator, shuffled, texts)
            for expression in EXPRESSIONS
            for name in (*TEMPTING, *TEMPTING, "none")
        ]
        for _ in range(4)
    ]
    return write_run(root, made)


def _rollout(expression: str, name: str, generator: random.Random, shuffled: bool, texts: bool) -> Rollout:
    problem = make_problem(expression)
    mistake = next(one for one in (NO_MISTAKE, *MISTAKES) if one.name == name)
    shown = generator.randrange(len(TEMPTING)) if shuffled else (*TEMPTING, "none").index(name)
    return Rollout(
        prompt=f"arith-{EXPRESSIONS.index(expression)}",
        answer=str(work(expression, mistake).answer),
        correct=name == "none",
        logits=kind(shown),
        text=write_solution(problem, mistake, generator) if texts else None,
        prompt_text=qwen_math_prompt(expression),
    )


def write_tiny() -> None:
    """Configuration, runs of two methods, and samples of both and of the base model, in the working directory."""
    Path("configs/tiny").mkdir(parents=True)
    Path("configs/tiny/dapo.yaml").write_text(
        "meds: {run_dir: runs/tiny-dapo}\nactor: {model_name_or_path: models/base}\n"
    )
    problems = [json.dumps({"id": one.id, "prompt": one.prompt, "answer": one.answer}) for one in PROBLEMS]
    Path("problems.jsonl").write_text("\n".join(problems) + "\n")
    for seed, name in enumerate(("base", "tiny-dapo", "tiny-meds-reference")):
        write_samples(name, seed)
        if seed:
            write_tiny_run(Path("runs", name), seed)


def write_tiny_run(path: Path, seed: int) -> None:
    """24 steps, two epochs of twelve prompts, each with four responses of three kinds of answers."""
    generator, steps = random.Random(seed), []
    for step in range(1, 25):
        drawn = [generator.randrange(3) for _ in range(4)]
        logits = [kind(answer, 1.5, 100 * seed + 4 * step + i) for i, answer in enumerate(drawn)]
        steps.append([Rollout(f"p{step % 12}", str(answer), logits=row) for answer, row in zip(drawn, logits)])
    write_run(path, steps)
    log = StepLog(RunPaths(path).metrics)
    for step in range(1, 25):
        ratios = {f"meds/eigen_ratio_{span}": generator.random() for span in ("all", "window", "step")}
        log.append(step, {"policy_entropy": 1 / step, "timing/step_total": 60 + seed + step / 7, **ratios})


def write_samples(label: str, seed: int) -> None:
    """Four samples of each problem, right or wrong at random."""
    generator, folder = random.Random(seed), Path("eval", label)
    write_settings(folder, Settings("model", label, 1.0, 1.0, 0, 9, {"problems": problems_hash(PROBLEMS)}))
    samples = [
        {"problem": problem.id, "index": index, "text": "", "tokens": 3, "truncated": False, "answer": answer}
        for problem in PROBLEMS
        for index, answer in enumerate(generator.choices("123", k=4))
    ]
    lines = [json.dumps({**sample, "right": sample["answer"] == "1"}) for sample in samples]
    (folder / "problems.jsonl").write_text("\n".join(lines) + "\n")


def judge(request: Request, _: int) -> Response:
    """Numbers that depend on the texts alone."""
    form = [line for line in request.body["messages"][0]["content"].splitlines() if line.endswith(">")]
    digits = hashlib.sha256(request.material.encode()).digest()
    highest = [int(line.split("to ")[1].rstrip(">")) for line in form]
    labels = [line.split(":")[0] for line in form]
    return Response("\n".join(f"{label}: {1 + byte % most}" for label, byte, most in zip(labels, digits, highest)))
