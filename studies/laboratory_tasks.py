"""The laboratory's tasks: problems from a seed, and a tiny policy that begins with typical mistakes.

    python -m studies.laboratory_tasks arithmetic --seed 1 --out assets/laboratory/arithmetic-1

Each folder has train.jsonl, eval.jsonl (held out) and policy/. A folder that exists already is left as it is.

- arithmetic: harder than the demo's. In the policy's supervised training, the right calculation is common for some
  shapes of expressions and rare for others, down to one in 400; the rest are systematic mistakes, in random words.
- chain_sum: a task of reasoning-gym, answered at once, without a calculation. The policy is trained on right answers,
  for so short a time that it is often wrong: its mistakes are its own.
- forks: arithmetic with few problems, which come up again and again, in which many mistakes are equally frequent and
  right solutions rare; and a deeper policy.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from meds_openrlhf.arithmetic import problems
from meds_openrlhf.arithmetic.char_tokenizer import build_char_tokenizer
from meds_openrlhf.arithmetic.tiny_policy import CONTEXT_LENGTH, PolicyRecipe, make_policy
from meds_openrlhf.arithmetic.warm_start import write_rows
from meds_openrlhf.data.gym import GymRequest, prepare_gym
from meds_openrlhf.data.templates import qwen_math_prompt
from meds_openrlhf.rewards.gym_problem import read_entry

TRAINED, HELD_OUT, SUPERVISED = 1000, 200, 3000  # problems; the last are for the supervised training alone
FEW = 384  # problems that forks trains on
Text = tuple[str, str]  # prompt, response

# The share of right solutions that the policy is trained on, by the shape of the expression.
RIGHT_SHARES = {
    "(a+b)*c-d": 0.4,
    "a*b+c*d": 0.3,
    "A+b*c": 0.2,
    "(a-b)*(c+d)": 0.1,
    "A+B-c": 0.05,
    "a*(b+c)-d": 0.02,
    "(A-b)*c": 0.01,
    "A-b*c": 0.005,
    "a*(b-c)+d": 0.0025,
    "a*b-c+d": 0.0025,
}
ID_FORM = "arithmetic-{:05d}"
# Of the mistakes that change a problem's answer, most likely first: few of them are most of what goes wrong.
MISTAKE_SHARES = (0.6, 0.2, 0.1, 0.06, 0.04)

# The same of forks, whose problems have many mistakes with different answers, all equally likely (`problems.TOGETHER`).
FORKED_RIGHT_SHARES = {
    "(a+b)*c-d": 0.02,
    "a*(b+c)-d": 0.02,
    "(a-b)*(c+d)": 0.015,
    "(A-b)*c+d": 0.015,
    "a*b-c*d": 0.01,
    "a*(b-c)+d": 0.01,
    "(A-b)*c": 0.005,
    "A-b*c": 0.005,
    "A+b*c": 0.0025,
    "a*b+c*d": 0.0025,
}
FEWEST_MISTAKES, MOST_MISTAKES = 8, 12


def arithmetic(seed: int, recipe: PolicyRecipe, out: Path) -> tuple[list[Text], list[str]]:
    """Write training and held-out problems; returns what the policy is trained on before, and pieces of that."""
    each = (TRAINED + HELD_OUT + SUPERVISED) // len(RIGHT_SHARES)
    drawn = {shape: problems.draw_problems(each, seed, family_of(shape)) for shape in RIGHT_SHARES}
    return _written(drawn, TRAINED, RIGHT_SHARES, problems.MISTAKES, MISTAKE_SHARES, seed, recipe, out)


def forks(seed: int, recipe: PolicyRecipe, out: Path) -> tuple[list[Text], list[str]]:
    """The same with problems of many mistakes, few of them to train on."""
    drawn = {}
    for shape in FORKED_RIGHT_SHARES:
        family = replace(family_of(shape), small=(2, 7), large=(11, 39), largest_value=150)  # few slips in calculating
        every = problems.draw_problems(family.count, seed, family)
        drawn[shape] = [
            each for each in every if len(problems.telling_mistakes(each, problems.TOGETHER)) >= FEWEST_MISTAKES
        ]
    equal = [1.0] * MOST_MISTAKES
    return _written(drawn, FEW, FORKED_RIGHT_SHARES, problems.TOGETHER, equal, seed, recipe, out)


def _written(
    drawn: Mapping[str, Sequence[problems.Problem]],
    count: int,
    right_shares: Mapping[str, float],
    mistakes: Sequence[problems.Mistake],
    mistake_shares: Sequence[float],
    seed: int,
    recipe: PolicyRecipe,
    out: Path,
) -> tuple[list[Text], list[str]]:
    """Write ``count`` training problems and the held-out ones, of the shapes in turn; the policy learns from others."""
    in_turns = [(problem, shape) for row in zip(*drawn.values()) for problem, shape in zip(row, drawn)]
    tested = count + HELD_OUT
    trained, held_out, others = in_turns[:count], in_turns[count:tested], in_turns[tested:]
    write_rows(out / "train.jsonl", [problem for problem, _ in trained], 0, ID_FORM)
    write_rows(out / "eval.jsonl", [problem for problem, _ in held_out], count, ID_FORM)
    generator = random.Random(f"laboratory-{seed}")
    texts = []
    for _ in range(recipe.examples):
        problem, shape = generator.choice(others)
        texts.append(solved(generator, problem, right_shares[shape], mistakes, mistake_shares))
    return texts, [*problems.OPENINGS, *problems.EQUALS, *problems.JOINERS, *problems.CLOSINGS]


def family_of(shape: str) -> problems.Family:
    """The problems of a shape."""
    return problems.Family((shape,), small=(2, 9), large=(11, 59), largest_value=200, count=500)


def solved(
    generator: random.Random,
    problem: problems.Problem,
    right_share: float,
    mistakes: Sequence[problems.Mistake],
    mistake_shares: Sequence[float],
) -> Text:
    """A prompt and a solution of it, right or with a mistake."""
    mistake = problems.NO_MISTAKE
    if generator.random() >= right_share:
        telling = problems.telling_mistakes(problem, mistakes)[: len(mistake_shares)]
        mistake = generator.choices(telling, mistake_shares[: len(telling)])[0]
    return qwen_math_prompt(problem.expression), problems.write_solution(problem, mistake, generator)


def chain_sum(seed: int, recipe: PolicyRecipe, out: Path) -> tuple[list[Text], list[str]]:
    """The same with a task of reasoning-gym."""
    sums = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2}
    request = GymRequest(tasks=["chain_sum"], size=TRAINED + SUPERVISED, held_out=HELD_OUT, seed=seed, settings=sums)
    prepare_gym(request, out)
    rows = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    (out / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:TRAINED]))
    os.replace(out / "chain_sum.jsonl", out / "eval.jsonl")
    generator = random.Random(f"laboratory-{seed}")
    texts = []
    for _ in range(recipe.examples):
        row = generator.choice(rows[TRAINED:])
        answer = read_entry(row["answer"])["answer"]
        texts.append((row["prompt"], f"{generator.choice(problems.OPENINGS)}\\boxed{{{answer}}}"))
    prompts = [row["prompt"] for row in rows]
    begin = os.path.commonprefix(prompts)  # noqa: RUF071  (of texts, not of paths)
    end = os.path.commonprefix([prompt[::-1] for prompt in prompts])[::-1]  # noqa: RUF071
    return texts, [begin, end, *problems.OPENINGS]


TASKS = {"arithmetic": arithmetic, "chain_sum": chain_sum, "forks": forks}
RECIPES = {
    "arithmetic": PolicyRecipe(steps=900),
    "chain_sum": PolicyRecipe(steps=2000),
    "forks": PolicyRecipe(layers=12, hidden_size=64, heads=2, steps=2400),
}


def make(task: str, seed: int, out: Path, report: Callable[[str], None], recipe: PolicyRecipe) -> None:
    """Make a task's folder, unless it exists."""
    if out.exists():
        report(f"{out} exists already")
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        folder = Path(scratch) / "fresh"
        folder.mkdir()
        texts, pieces = TASKS[task](seed, recipe, folder)
        tokenizer = build_char_tokenizer(CONTEXT_LENGTH, ["\\boxed{", *(piece for piece in pieces if len(piece) > 1)])
        make_policy(folder / "policy", tokenizer, texts, recipe, seed, random.Random(f"batches-{seed}"), report)
        os.replace(folder, out)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Make a task of the laboratory: problems, and a policy to start from.")
    parser.add_argument("task", choices=RECIPES)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    make(given.task, given.seed, given.out, lambda line: print(line, flush=True), RECIPES[given.task])


if __name__ == "__main__":
    main()
