"""Every analysis of small runs prints what is stored in tests/analysis/stored, digit by digit.

If a change is meant, this writes the files again: python -m tests.analysis.test_stored_outputs
"""

import hashlib
import io
import json
import os
import random
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from analysis import case_study, cost, eigen_ratio, known_mistakes, paper, theorem
from meds_openrlhf.evaluation.problems import Problem
from meds_openrlhf.evaluation.settings import Settings, problems_hash, write_settings
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.step_log import StepLog
from tests.analysis.arithmetic_runs import write_arithmetic_run
from tests.analysis.judge.judge_server import Request, Response, judge_server
from tests.analysis.runs import Rollout, kind, write_run

STORED = Path(__file__).parent / "stored"
PROBLEMS = [Problem(f"p{number}", f"Question {number}?", "1") for number in range(5)]
JUDGED = ("within-step", "across-steps", "agreement")
COMMANDS: dict[str, tuple[Callable[[list[str]], int], list[str]]] = {
    "theorem": (theorem.main, ["runs/arithmetic", "runs/tiny-dapo", "--problems=200", "--alpha=0.1", "--beta=0.2"]),
    "known_mistakes": (known_mistakes.main, ["runs/arithmetic"]),
    "eigen_ratio": (eigen_ratio.main, ["runs/tiny-dapo", "runs/tiny-meds-reference", "--recompute"]),
    "cost": (cost.main, ["runs/tiny-dapo", "runs/tiny-meds-reference", "--steps", "10", "24", "50"]),
    "case_study": (case_study.main, ["runs/arithmetic", "--preset", "robust"]),
}


def _write_run(path: Path, seed: int) -> None:
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


def _write_samples(label: str, seed: int) -> None:
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


def _judge(request: Request, _: int) -> Response:
    """Numbers that depend on the texts alone."""
    form = [line for line in request.body["messages"][0]["content"].splitlines() if line.endswith(">")]
    digits = hashlib.sha256(request.material.encode()).digest()
    highest = [int(line.split("to ")[1].rstrip(">")) for line in form]
    labels = [line.split(":")[0] for line in form]
    return Response("\n".join(f"{label}: {1 + byte % most}" for label, byte, most in zip(labels, digits, highest)))


def _rounded(value: Any) -> Any:
    """Numbers to nine digits, and none for a rounding error: sums may differ in the last bits on other machines."""
    if isinstance(value, dict):
        return {name: _rounded(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    if isinstance(value, float):
        return 0.0 if abs(value) < 1e-12 else float(f"{value:.9g}")
    return value


def outputs() -> dict[str, str]:
    """All outputs by file name, made in the working directory."""
    Path("configs/tiny").mkdir(parents=True)
    Path("configs/tiny/dapo.yaml").write_text(
        "meds: {run_dir: runs/tiny-dapo}\nactor: {model_name_or_path: models/base}\n"
    )
    problems = [json.dumps({"id": one.id, "prompt": one.prompt, "answer": one.answer}) for one in PROBLEMS]
    Path("problems.jsonl").write_text("\n".join(problems) + "\n")
    for seed, name in enumerate(("base", "tiny-dapo", "tiny-meds-reference")):
        _write_samples(name, seed)
        if seed:
            _write_run(Path("runs", name), seed)
    write_arithmetic_run(Path("runs/arithmetic"), shuffled=True)
    found: dict[str, str] = {}
    for name, (command, words) in COMMANDS.items():
        found[f"{name}.txt"] = _printed(command, [*words, "--json", f"{name}.json"])
        found[f"{name}.json"] = Path(f"{name}.json").read_text()
    words = ["tiny", "--benchmarks", "problems.jsonl", "--n", "4"]
    with judge_server(_judge) as server:
        judge = ["--judge-model", "m", "--judge-url", server.url]
        found["paper.txt"] = _printed(paper.main, [*words, *judge])
    found["paper.md"] = Path("paper/README.md").read_text()
    for name in JUDGED:
        found[f"{name}.json"] = Path("paper", name, "numbers.json").read_text()
    compact = {"indent": 0, "ensure_ascii": False}
    return {
        name: json.dumps(_rounded(json.loads(text)), **compact) if name.endswith(".json") else text
        for name, text in found.items()
    }


def _printed(command: Callable[[list[str]], int], words: list[str]) -> str:
    with redirect_stdout(io.StringIO()) as printed:
        assert command(words) == 0
    return re.sub(r"[\d.]+e-1\d", "0", printed.getvalue())


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.delenv("OPENAI_API_KEY", raising=False)
        patch.chdir(tmp_path_factory.mktemp("analyses"))
        return outputs()


@pytest.mark.parametrize("name", sorted(path.name for path in STORED.iterdir()))
def test_an_analysis_prints_and_writes_what_is_stored(name: str, found: dict[str, str]) -> None:
    assert found[name] == (STORED / name).read_text()


if __name__ == "__main__":
    os.environ["NO_PROXY"] = "127.0.0.1"
    with TemporaryDirectory() as scratch:
        os.chdir(scratch)
        for file, content in outputs().items():
            (STORED / file).write_text(content)
