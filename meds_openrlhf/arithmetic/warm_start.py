"""Prepare the demo's assets: a tiny policy that keeps making the same mistakes, and problems to train it on.

The policy has Qwen2's architecture and a short supervised training on worked solutions, most of which make one of the
problem's dominant mistakes. Its samples repeat the same few wrong answers in varied words, and are right often enough
for reinforcement learning to improve it.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from meds_openrlhf.arithmetic.problems import (
    NO_MISTAKE,
    PIECES,
    Problem,
    dominant_mistakes,
    draw_problems,
    write_solution,
)
from meds_openrlhf.arithmetic.tiny_policy import CONTEXT_LENGTH, PolicyRecipe, build_char_tokenizer, make_policy
from meds_openrlhf.data.questions import qwen_math_prompt

# Increase this when problems, wording or training change in code: assets of earlier versions are then rebuilt.
TASK_VERSION = 2

_RECIPE_FILE = "recipe.json"


@dataclass(frozen=True, kw_only=True)
class WarmStartRecipe(PolicyRecipe):
    """The settings of the supervised training; equal recipes and seeds give equal assets on the same machine."""

    steps: int = 220
    train_problems: int = 64
    eval_problems: int = 32
    """Never seen in the supervised training."""
    other_problems: int = 600
    """Problems of the same family in neither of the two sets, for skill beyond the problems of `train`."""
    train_share: float = 0.7
    """Share of the solutions that solve a problem of `train`; the rest solve other problems."""
    right_share: float = 0.34
    first_mistake_share: float = 0.42
    """Share of the solutions that make the first dominant mistake; the remaining solutions make the second."""


DEFAULT_RECIPE = WarmStartRecipe()


@dataclass(frozen=True)
class ArithmeticAssets:
    """The paths of the demo's assets."""

    policy: Path  # a folder that AutoModelForCausalLM, AutoTokenizer and vLLM load
    train: Path  # JSON Lines: id, prompt (template applied), answer, datasource
    eval: Path  # the same, with problems that the policy never saw


def prepare(
    out: Path,
    seed: int = 0,
    report: Callable[[str], None] = lambda line: None,
    recipe: WarmStartRecipe = DEFAULT_RECIPE,
) -> ArithmeticAssets:
    """Make the policy and the problems under `out`, unless they exist already for the same recipe and seed.

    The folder is created atomically and replaces assets of another recipe. `report` gets progress lines. Raises
    ValueError if `out` holds something else, which is left unchanged.
    """
    assets = ArithmeticAssets(policy=out / "policy", train=out / "train.jsonl", eval=out / "eval.jsonl")
    settings = {"task_version": TASK_VERSION, "seed": seed, **asdict(recipe)}
    if _read_settings(out) == settings:
        report(f"the arithmetic policy and its problems are already in {out}")
        return assets
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        fresh = Path(scratch) / "fresh"
        _build(fresh, seed, recipe, report)
        (fresh / _RECIPE_FILE).write_text(json.dumps(settings, indent=2) + "\n")
        if out.exists():
            os.replace(out, Path(scratch) / "former")
        os.replace(fresh, out)
    return assets


def _read_settings(out: Path) -> dict[str, object] | None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not (out / _RECIPE_FILE).is_file():
        raise ValueError(f"out={out}: contains files other than the demo's assets. Name another folder.")
    settings: dict[str, object] = json.loads((out / _RECIPE_FILE).read_text())
    return settings


def _build(folder: Path, seed: int, recipe: WarmStartRecipe, report: Callable[[str], None]) -> None:
    """Draw the problems, train the policy, and write both into the folder."""
    problems = draw_problems(recipe.train_problems + recipe.eval_problems + recipe.other_problems, seed)
    evaluated = recipe.train_problems + recipe.eval_problems
    train, others = problems[: recipe.train_problems], problems[evaluated:]

    generator = random.Random(f"solutions-{seed}")
    texts = [_draw_text(train, others, generator, recipe) for _ in range(recipe.examples)]
    make_policy(folder / "policy", build_char_tokenizer(CONTEXT_LENGTH, PIECES), texts, recipe, seed, generator, report)
    write_rows(folder / "train.jsonl", train, first_number=0)
    write_rows(folder / "eval.jsonl", problems[recipe.train_problems : evaluated], first_number=recipe.train_problems)


def write_rows(path: Path, problems: Sequence[Problem], first_number: int, id_form: str = "arith-{:06d}") -> None:
    """Write problems as JSON Lines: id (``id_form`` with the problem's number), prompt, answer, datasource."""
    rows = [
        {
            "id": id_form.format(number),
            "prompt": qwen_math_prompt(problem.expression),
            "answer": str(problem.answer),
            "datasource": "arithmetic",
        }
        for number, problem in enumerate(problems, first_number)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _draw_text(
    train: Sequence[Problem], others: Sequence[Problem], generator: random.Random, recipe: WarmStartRecipe
) -> tuple[str, str]:
    """A prompt and a solution of it, right or with one of its dominant mistakes."""
    problem = generator.choice(train if generator.random() < recipe.train_share else others)
    first, second = dominant_mistakes(problem)
    shares = (recipe.right_share, recipe.first_mistake_share, 1 - recipe.right_share - recipe.first_mistake_share)
    mistake = generator.choices((NO_MISTAKE, first, second), shares)[0]
    return qwen_math_prompt(problem.expression), write_solution(problem, mistake, generator)
