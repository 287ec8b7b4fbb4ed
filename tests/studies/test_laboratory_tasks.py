"""The laboratory's tasks: what lies in their folders, and that it is made from the seed alone."""

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
from transformers import AutoTokenizer

from meds_openrlhf.arithmetic.problems import (
    TOGETHER,
    make_problem,
    telling_mistakes,
    work,
    write_solution,
)
from meds_openrlhf.arithmetic.tiny_policy import PolicyRecipe
from meds_openrlhf.rewards.grading import verdict
from studies.known_mistake import from_texts
from studies.laboratory_tasks import ARITHMETIC, FORKS, HELD_OUT, RECIPES, TRAINED, Mixture, make

TINY = PolicyRecipe(layers=2, hidden_size=16, heads=1, steps=2, batch_size=100)


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("task", RECIPES)
def test_a_task_has_its_problems_and_a_policy_that_was_trained_on_others(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Mixture.write
    made: list[list[tuple[str, str]]] = []
    monkeypatch.setattr(Mixture, "write", lambda *given: made.append(write(*given)) or made[-1])
    lines: list[str] = []
    for _ in range(2):
        make(task, 1, tmp_path / task, lines.append, TINY)
    assert lines[-1] == f"{tmp_path / task} exists already"
    trained, held_out = (rows(tmp_path / task / f"{name}.jsonl") for name in ("train", "eval"))
    count = FORKS.trained if task.startswith("forks") else TRAINED
    assert len(trained) == count
    assert 0.75 * HELD_OUT <= len(held_out) <= HELD_OUT
    prompts = {row["prompt"] for row in (*trained, *held_out)}
    assert len(prompts) == count + len(held_out)
    assert len({row["id"] for row in (*trained, *held_out)}) == count + len(held_out)
    assert [path.name for path in tmp_path.iterdir()] == [task]
    (texts,) = made
    assert len(texts) == TINY.examples
    assert not prompts & {prompt for prompt, _ in texts}

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / task / "policy")
    for row in held_out:
        assert len(tokenizer.encode(row["prompt"])) <= 40
        assert tokenizer.decode(tokenizer.encode(row["prompt"])) == row["prompt"]


def test_arithmetic_is_solved_rightly_as_often_as_its_shape_says() -> None:
    for shape, share in ARITHMETIC.right_shares.items():
        problem = ARITHMETIC._problems(shape, 0)[0]
        generator = Random(0)
        solved = [ARITHMETIC.solved(generator, problem, shape)[1] for _ in range(1000)]
        right = sum(verdict(text, str(problem.answer))[1] for text in solved) / 1000
        assert right == pytest.approx(share, abs=0.04)
        assert work(problem.expression).answer == problem.answer


def test_the_oracle_tells_every_mistake_from_every_other_in_any_words() -> None:
    problem, generator = make_problem("(7-2)*6-15"), Random(0)
    mistakes = telling_mistakes(problem, TOGETHER)
    assert len(mistakes) >= 8
    texts = [write_solution(problem, mistake, generator) for mistake in mistakes for _ in range(5)]
    vectors = from_texts(["What is (7-2)*6-15?"] * len(texts), texts).reshape(len(mistakes), 5, 3)
    assert (vectors == vectors[:, :1]).all()
    assert len({tuple(vector) for vector in vectors[:, 0].tolist()}) == len(mistakes)


def test_unexplained_mistakes_are_told_apart_by_their_answers() -> None:
    texts = ["it is \\boxed{777}", "So 7-2=5, \\boxed{777}", "\\boxed{7770}", "7-2=5"]
    texts += [f"\\boxed{{{answer}}}" for answer in range(500, 700)]
    first, second, third, none, *others = from_texts(["What is (7-2)*6-15?"] * len(texts), texts)
    assert (first == second).all()
    assert first[0] == 0 < first[1] != third[1]
    assert len({tuple(vector) for vector in others}) == len(others)
    assert np.isnan(none).all()
