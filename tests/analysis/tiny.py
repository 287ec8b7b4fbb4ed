"""A tiny model of the project in the working directory: a configuration, runs, samples of an evaluation, a judge."""

import hashlib
import json
import random
from pathlib import Path

from meds_openrlhf.evaluation.problems import Problem
from meds_openrlhf.evaluation.settings import Settings, problems_hash, write_settings
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.step_log import StepLog
from tests.analysis.runs import Rollout, kind, write_run
from tests.judge.judge_server import Request, Response

PROBLEMS = [Problem(f"p{number}", f"Question {number}?", "1") for number in range(5)]
COMMAND = ["tiny", "--benchmarks", "problems.jsonl", "--n", "4"]  # of analysis.paper


def write_tiny() -> None:
    """Runs of two methods, and samples of both and of the base model."""
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
