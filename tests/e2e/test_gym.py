"""A task of reasoning-gym, answered as `Answer: 42`: made, trained on with that marker, and evaluated."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from datasets import load_dataset

from meds_openrlhf.arithmetic.tiny_policy import PolicyRecipe, build_char_tokenizer, make_policy
from meds_openrlhf.gym.problem import made_of
from meds_openrlhf.memory.rows import prompt_key
from meds_openrlhf.rollouts.log import read_rollouts
from tests.e2e.conftest import MEDS, finished
from tests.e2e.runs import SAMPLES, STEPS, Run, require_memory_at_work

PATTERN = "Answer: (.*)"
RECIPE = PolicyRecipe(steps=150, layers=4, batch_size=12)


def make(out: Path) -> None:
    words = ["data", "prepare", "gym:chain_sum", "--size=24", "--held-out=8", f"--out={out}"]
    settings = ["min_terms=2", "max_terms=2", "min_digits=1", "max_digits=1"]
    words += ["--instruction", "Answer: and a number.", *(f"--set={setting}" for setting in settings)]
    assert finished([*MEDS, *words]).returncode == 0


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def own_answer(row: dict[str, str]) -> int:
    return int(made_of(row["answer"]).answer or "")


def warm_up(problems: list[dict[str, str]], folder: Path) -> None:
    """Write a policy that says `Answer: `, and the right number or one of two wrong ones."""
    generator = random.Random(0)

    def text() -> tuple[str, str]:
        row = generator.choice(problems)
        answer = generator.choices((str(own_answer(row)), "100", "-55"), (0.4, 0.35, 0.25))[0]
        words = generator.choice(("So ", "Well, ", "I think: "))
        return row["prompt"], f"{words}Answer: {answer}"

    texts = [text() for _ in range(RECIPE.examples)]
    make_policy(folder, build_char_tokenizer(512), texts, RECIPE, 0, generator, print)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gym")
    make(folder / "data")
    warm_up(rows(folder / "data" / "train.jsonl"), folder / "policy")
    return folder


def last_match(text: str) -> re.Match[str] | None:
    matches = [*re.finditer(PATTERN, text)]
    return matches[-1] if matches else None


@pytest.mark.slow
def test_a_gym_task_with_a_marker_trains_and_is_evaluated(
    task: Path, train: Callable[..., Run], cluster: str, tmp_path: Path
) -> None:
    problems = rows(task / "data" / "train.jsonl")[:16]
    (tmp_path / "sixteen.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems))
    assert load_dataset("json", data_files=str(tmp_path / "sixteen.jsonl"))["train"][3] == problems[3]
    run = train(
        "--meds.reward=gym", "--meds.features.answer_pattern", PATTERN, "--meds.tracking.rollouts=all",
        f"--actor.model_name_or_path={task}/policy", f"--data.prompt_dataset={tmp_path}/sixteen.jsonl",
        "--data.max_len=256", "--rollout.max_new_tokens=32",
    )  # fmt: skip
    require_memory_at_work(run)
    right = {prompt_key(row["prompt"]): own_answer(row) for row in problems}
    logged = [row for table in read_rollouts(run.paths) for row in table.to_pylist()]
    assert len(logged) == STEPS * SAMPLES
    marked = [row for row in logged if row["answer"] is not None]
    assert len(marked) > 0.9 * len(logged)
    for row in marked:
        match = last_match(row["response"])
        assert match is not None
        assert row["answer"] == match[1].strip()
        assert row["response"][row["answer_start"] :].startswith(row["answer"]), row
        assert row["answer_start"] >= match.start(1)
        assert row["correct"] == (row["answer"] == str(right[row["prompt"]])), row
    assert {row["correct"] for row in marked} == {True, False}

    words = ["eval", str(run.paths.root), "--benchmarks", f"{task}/data/chain_sum.jsonl", "--n=4", "--allow-cpu"]
    assert finished([*MEDS, *words, "--engines=1", f"--out={tmp_path}/eval"], cluster).returncode == 0
    expected = {row["id"]: str(own_answer(row)) for row in rows(task / "data" / "chain_sum.jsonl")}
    assert not expected.keys() & {row["id"] for row in rows(task / "data" / "train.jsonl")}
    samples = rows(tmp_path / "eval" / "run" / "chain_sum.jsonl")
    assert len(samples) == 4 * len(expected)
    assert any(sample["answer"] is not None for sample in samples)
    for sample in samples:
        assert sample["right"] == (sample["answer"] == expected[sample["problem"]])
        match = last_match(sample["text"])
        assert (sample["answer"] or "") == ("" if match is None else match[1].strip())
