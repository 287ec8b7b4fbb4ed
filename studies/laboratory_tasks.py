"""The laboratory's tasks: problems from a seed, and a tiny policy that begins with typical mistakes.

    python -m studies.laboratory_tasks arithmetic --seed 1 --out assets/laboratory/arithmetic-1

Each folder has train.jsonl, eval.jsonl (held out) and policy/. A folder that exists already is left as it is.

- arithmetic: harder than the demo's. In the policy's supervised training, the right calculation is common for some
  shapes of expressions and rare for others, down to one in 400; the rest are systematic mistakes, in random words.
- forks: arithmetic with few problems, which come up again and again, in which many mistakes are equally frequent and
  right solutions rare; and a deeper policy. forks-common: right solutions are common. forks-few: few mistakes.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meds_openrlhf.arithmetic import problems
from meds_openrlhf.arithmetic.tiny_policy import CONTEXT_LENGTH, PolicyRecipe, build_char_tokenizer, make_policy
from meds_openrlhf.arithmetic.warm_start import write_rows
from meds_openrlhf.data.questions import qwen_math_prompt

TRAINED, HELD_OUT, SUPERVISED = 1000, 200, 3000  # problems; the last are for the supervised training alone
ID_FORM = "arithmetic-{:05d}"
Text = tuple[str, str]  # prompt, response


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Arithmetic problems, and what a policy is trained on before: right solutions and systematic mistakes."""

    right_shares: Mapping[str, float]  # of right solutions, by the shape of the expression
    mistakes: Sequence[problems.Mistake]
    mistake_shares: Sequence[float]  # of a problem's first mistakes with different answers
    trained: int  # problems to train on
    drawn: int  # problems of each shape
    fewest: int = 0  # mistakes with different answers that a problem has
    small: tuple[int, int] = (2, 9)
    large: tuple[int, int] = (11, 59)
    largest_value: int = 200

    def write(self, seed: int, examples: int, out: Path) -> list[Text]:
        """Write training and held-out problems; returns the ``examples`` that the policy is trained on before.

        Shapes come in turn, and the policy learns from problems that are in neither file.
        """
        rows = zip(*(self._problems(shape, seed) for shape in self.right_shares))
        in_turns = [pair for row in rows for pair in zip(row, self.right_shares)]
        tested = self.trained + HELD_OUT
        trained, held_out, others = in_turns[: self.trained], in_turns[self.trained : tested], in_turns[tested:]
        write_rows(out / "train.jsonl", [problem for problem, _ in trained], 0, ID_FORM)
        write_rows(out / "eval.jsonl", [problem for problem, _ in held_out], self.trained, ID_FORM)
        generator = random.Random(f"laboratory-{seed}")
        return [self.solved(generator, *generator.choice(others)) for _ in range(examples)]

    def _problems(self, shape: str, seed: int) -> list[problems.Problem]:
        family = problems.Family((shape,), self.small, self.large, self.largest_value, count=self.drawn)
        drawn = problems.draw_problems(self.drawn, seed, family)
        return [each for each in drawn if len(problems.telling_mistakes(each, self.mistakes)) >= self.fewest]

    def solved(self, generator: random.Random, problem: problems.Problem, shape: str) -> Text:
        """A prompt and a solution of it, right or with a mistake."""
        mistake = problems.NO_MISTAKE
        if generator.random() >= self.right_shares[shape]:
            telling = problems.telling_mistakes(problem, self.mistakes)[: len(self.mistake_shares)]
            mistake = generator.choices(telling, self.mistake_shares[: len(telling)])[0]
        return qwen_math_prompt(problem.expression), problems.write_solution(problem, mistake, generator)


# Few mistakes are most of what goes wrong.
ARITHMETIC = Mixture(
    right_shares={
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
    },
    mistakes=problems.MISTAKES,
    mistake_shares=(0.6, 0.2, 0.1, 0.06, 0.04),
    trained=TRAINED,
    drawn=(TRAINED + HELD_OUT + SUPERVISED) // 10,
)
# Up to twelve mistakes are equally likely; small numbers, so that slips in calculating are rarer.
FORKS = Mixture(
    right_shares={
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
    },
    mistakes=problems.TOGETHER,
    mistake_shares=(1.0,) * 12,
    trained=384,
    drawn=500,
    fewest=8,
    small=(2, 7),
    large=(11, 39),
    largest_value=150,
)
COMMON = replace(FORKS, right_shares=dict.fromkeys(FORKS.right_shares, 0.2))
FEW = replace(
    FORKS,
    right_shares=dict.fromkeys(FORKS.right_shares, 0.05),
    mistakes=problems.MISTAKES,
    mistake_shares=(0.30, 0.25, 0.20, 0.15, 0.10),
    fewest=3,
)
TASKS = {"arithmetic": ARITHMETIC, "forks": FORKS, "forks-common": COMMON, "forks-few": FEW}
DEEPER = PolicyRecipe(layers=12, hidden_size=64, heads=2, steps=2400)
RECIPES = {**dict.fromkeys(TASKS, DEEPER), "arithmetic": PolicyRecipe(steps=900)}


def make(task: str, seed: int, out: Path, report: Callable[[str], None], recipe: PolicyRecipe) -> None:
    """Make a task's folder, unless it exists."""
    if out.exists():
        report(f"{out} exists already")
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        folder = Path(scratch) / "fresh"
        folder.mkdir()
        texts = TASKS[task].write(seed, recipe.examples, folder)
        tokenizer = build_char_tokenizer(CONTEXT_LENGTH, problems.PIECES)
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
