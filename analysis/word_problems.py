"""Do themes find the kinds of mistakes in sentences? In generated word problems the kinds are known.

Writes dumps of right and wrong responses in three styles: a few sentences, the same after scratch work, and LaTeX. Each
kind of mistake has two wordings and occurs in several stories. The themes of an atlas of each dump are compared with
the kinds, by the adjusted Rand index: 0 for chance, 1 for equal.

    python -m analysis.word_problems --out word-problems
"""

from __future__ import annotations

import ast
import json
import operator
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from sklearn.metrics import adjusted_rand_score  # type: ignore[import-untyped]

from analysis.command_line import Command, Finding
from meds_openrlhf.cli.main import main as meds
from meds_openrlhf.options import option
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.report.atlas import read_atlas
from meds_openrlhf.report.themes import themes_of
from meds_openrlhf.stats.presentation import markdown

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
STYLES = ("short", "scratch", "latex")
NAMES = ("Mia", "Omar", "Lena", "Ravi", "Sofia", "Jonas", "Amara", "Pavel", "Noor", "Tess", "Diego", "Hana")


@dataclass(frozen=True)
class Story:
    """A kind of problem: ``question`` with places for ``a``, ``b``, ``c`` and a ``name``; ``form`` is its solution."""

    form: str  # a key of SOLUTIONS
    question: str
    unit: str


# The solution of each form, and the wrong ones: by kind two wordings, steps as [[left = result]], and the answer.
# In a wording, {a*b} is the value of that expression, and [a*b] the expression and its value as an equation.
SOLUTIONS = {
    "a*b+c": (
        ("First [a*b]. Then [(a*b)+c].", "There are {a*b} at first: [a*b]. With the rest it is [(a*b)+c]."),
        {
            "adds where it multiplies": (
                "Put the two numbers together: [a+b]. Then [(a+b)+c].",
                "First the sum [a+b], and with the rest [(a+b)+c].",
            ),
            "stops after the first step": ("We need [a*b]. That is all of them.", "So [a*b], and we are done."),
            "multiplies where it adds": (
                "First [a*b]. Then times the rest: [(a*b)*c].",
                "With [a*b] for the first part, the rest multiplies it: [(a*b)*c].",
            ),
            "one too few": (
                "First [a*b]. Not counting the first one, [(a*b)+c-1].",
                "Then [a*b], and without one of them [(a*b)+c-1].",
            ),
        },
    ),
    "a*b-c": (
        ("Together [a*b]. After that [(a*b)-c].", "First [a*b]. What is left is [(a*b)-c]."),
        {
            "adds where it subtracts": (
                "Together [a*b]. These come on top: [(a*b)+c].",
                "First [a*b], and adding the others [(a*b)+c].",
            ),
            "adds where it multiplies": (
                "Put the two numbers together: [a+b]. What is left is [(a+b)-c].",
                "First the sum [a+b], and after that [(a+b)-c].",
            ),
            "stops after the first step": ("We need [a*b]. That is all of them.", "So [a*b], and we are done."),
            "subtracts twice": (
                "Together [a*b]. Both times they are gone, so [(a*b)-(2*c)].",
                "First [a*b]. Taking them away for each of the two gives [(a*b)-(2*c)].",
            ),
        },
    ),
    "(a+b)*c": (
        ("Each time [a+b]. In all [(a+b)*c].", "One of them is [a+b], so all are [(a+b)*c]."),
        {
            "multiplies only one of them": (
                "Multiply the second: [b*c]. Then add the first once: [a+(b*c)].",
                "The second comes to [b*c], and the first is there once, so [a+(b*c)].",
            ),
            "stops after the first step": ("We need [a+b]. That is all of them.", "So [a+b], and we are done."),
            "adds all numbers": ("Add everything up: [a+b+c].", "The total of all numbers is [a+b+c]."),
        },
    ),
    "a/b+c": (
        ("Shared, each is [a/b]. Then [(a/b)+c].", "First divide, [a/b]. With the rest it is [(a/b)+c]."),
        {
            "multiplies where it divides": (
                "For each of them, [a*b]. Then [(a*b)+c].",
                "First take it that many times, [a*b], and then [(a*b)+c].",
            ),
            "stops after the first step": ("We need [a/b]. That is all of them.", "So [a/b], and we are done."),
            "adds before it shares": (
                "First put it all in one heap: [a+c]. Shared it is [(a+c)/b].",
                "Everything together is [a+c], and then shared [(a+c)/b].",
            ),
        },
    ),
    "a-a*b/100": (
        ("The reduction is [a*b/100]. So [a-(a*b/100)] remains.", "It falls by [a*b/100], to [a-(a*b/100)]."),
        {
            "takes the reduction for the rest": (
                "The new value is the percentage of it: [a*b/100].",
                "At that percentage we get [a*b/100] as the new value.",
            ),
            "takes percent as a number": (
                "It falls by that number: [a-b].",
                "Take the number off directly, [a-b].",
            ),
            "raises where it reduces": (
                "The change is [a*b/100]. It goes up to [a+(a*b/100)].",
                "That makes [a*b/100] more, so [a+(a*b/100)].",
            ),
        },
    ),
}
STORIES = (
    Story(
        "a*b+c",
        "{name} buys {a} boxes with {b} pencils each and finds {c} more. How many pencils does {name} have?",
        "pencils",
    ),
    Story(
        "a*b+c",
        "A hall has {a} rows of {b} chairs. {c} chairs stand along the wall. How many chairs are there?",
        "chairs",
    ),
    Story(
        "a*b+c", "{name} reads {a} pages on each of {b} days, and {c} pages on Sunday. How many pages is that?", "pages"
    ),
    Story(
        "a*b-c", "{name} picks {a} baskets of {b} plums and eats {c} of the plums. How many plums are left?", "plums"
    ),
    Story(
        "a*b-c",
        "{name} earns {a} dollars an hour for {b} hours and spends {c} dollars. How much money is left?",
        "dollars",
    ),
    Story(
        "a*b-c", "A train has {a} cars with {b} seats each, and {c} seats are taken. How many seats are free?", "seats"
    ),
    Story(
        "(a+b)*c", "A lunch is a soup for {a} dollars and a salad for {b} dollars. What do {c} lunches cost?", "dollars"
    ),
    Story("(a+b)*c", "Each of {c} teams has {a} runners and {b} swimmers. How many athletes are there?", "athletes"),
    Story(
        "(a+b)*c", "{name} walks {a} km in the morning and {b} km in the evening. How far is that in {c} days?", "km"
    ),
    Story(
        "a/b+c", "{name} shares {a} stickers among {b} friends. Hana already had {c}. How many has she now?", "stickers"
    ),
    Story(
        "a/b+c",
        "A tank of {a} liters is emptied into {b} cans. One can had {c} liters before. How full is it?",
        "liters",
    ),
    Story(
        "a/b+c",
        "A rope of {a} meters is cut into {b} parts, and {c} meters are tied to one. How long is that one?",
        "meters",
    ),
    Story("a-a*b/100", "A coat costs {a} dollars and is reduced by {b} percent. What does it cost now?", "dollars"),
    Story("a-a*b/100", "A town of {a} people loses {b}% of them. How many people live there now?", "people"),
    Story("a-a*b/100", "{name} has {a} emails and deletes {b} percent of them. How many emails remain?", "emails"),
)


def rollouts(style: str, seed: int = 0, steps: int = 4, samples: int = 8) -> Iterator[dict[str, Any]]:
    """Yield the lines of a dump: each problem once in each step, with the ``mistake`` of every response."""
    problems = [_problem(story, random.Random(f"{seed} {number}")) for number, story in enumerate(STORIES * 4)]
    for step in range(1, steps + 1):
        for number, (prompt, story, values) in enumerate(problems):
            draws = random.Random(f"{seed} {style} {step} {number}")
            right, wrong = SOLUTIONS[story.form]
            kinds = list(wrong)[number % 2 :][:3]
            for _ in range(samples):
                mistake = draws.choice(["", "", *kinds, kinds[0]])
                wording = draws.choice(wrong[mistake] if mistake else right)
                response = _response(wording, values, story.unit, style, draws)
                yield {
                    "prompt": prompt, "response": response, "reward": float(not mistake), "step": step,
                    "ground_truth": _number(_value(story.form, values)), "mistake": mistake,
                }  # fmt: skip


def _problem(story: Story, draws: random.Random) -> tuple[str, Story, dict[str, Fraction]]:
    """A problem of a story, with numbers of which no two mistakes give the same answer."""
    while True:
        b = draws.choice([20, 25, 40, 60, 75]) if story.form == "a-a*b/100" else draws.randint(3, 9)
        a = draws.randint(4, 30) * (b if "a/b" in story.form else 20 if "100" in story.form else 1)
        values = {"a": Fraction(a), "b": Fraction(b), "c": Fraction(draws.randint(2, 12))}
        right, wrong = SOLUTIONS[story.form]
        answers = [_last(wordings[0], values) for wordings in (right, *wrong.values())]
        if len({*answers, *values.values()}) == len(answers) + 3 and min(answers) > 0:
            return (
                story.question.format(name=draws.choice(NAMES), **{k: _number(v) for k, v in values.items()}),
                story,
                values,
            )


def _last(wording: str, values: dict[str, Fraction]) -> Fraction:
    return _value(re.findall(r"\[(.*?)\]", wording)[-1], values)


def _response(wording: str, values: dict[str, Fraction], unit: str, style: str, draws: random.Random) -> str:
    """A response with these steps in this style."""
    equation = _latex if style == "latex" else _plain
    text = re.sub(r"\{(.*?)\}", lambda found: _number(_value(found[1], values)), wording)
    text = re.sub(r"\[(.*?)\]", lambda found: equation(found[1], values), text)
    answer = _last(wording, values)
    ending = draws.choice(("The answer is \\boxed{{{}}}.", "So it is \\boxed{{{}}} {unit}.", "\\boxed{{{}}}")).format(
        _number(answer), unit=unit
    )
    if style == "scratch":
        numbers = [draws.randint(2, 99) for _ in range(6)]
        sentences = draws.sample(
            [
                f"Let me see, {numbers[0]} times {numbers[1]} would be {numbers[0] * numbers[1]}, no.",
                f"With {numbers[2]} the check {numbers[2]} + {numbers[3]} = {numbers[2] + numbers[3]} would fail.",
                f"For instance {numbers[4]} - 1 = {numbers[4] - 1}.",
                f"The question asks about {unit}.",
                f"Wait, {_number(values['a'])} and {_number(values['b'])} are given.",
                f"Maybe {numbers[5]}?",
            ],
            4,
        )  # fmt: skip
        text = f"<think>\n{' '.join(sentences)}\n</think>\n{text}"
    if style == "latex":
        text = f"**Solution**\n\nTo find the number of {unit}, we go step by step.\n\n{text}\n\n"
    return f"{text} {ending}"


def _plain(expression: str, values: dict[str, Fraction]) -> str:
    return f"{_written(expression, values)} = {_number(_value(expression, values))}"


def _latex(expression: str, values: dict[str, Fraction]) -> str:
    written = _written(expression, values).replace("*", "\\times").replace("%", "\\%")
    fraction = re.sub(r"(\S+(?: \\times \S+)?) / (\S+)", r"\\frac{\1}{\2}", written)
    return f"\\[ {fraction} = {_number(_value(expression, values))} \\]"


def _written(expression: str, values: dict[str, Fraction]) -> str:
    """The expression with numbers, its parts in brackets calculated."""
    calculated = re.sub(r"\(([^()]*)\)", lambda found: _number(_value(found[1], values)), expression)
    numbers = re.sub(r"[abc]", lambda found: _number(values[found[0]]), calculated)
    return re.sub(r"([-+*/])", r" \1 ", numbers)


def _value(expression: str, values: dict[str, Fraction]) -> Fraction:
    """The value of sums, products and quotients of ``values`` and integers, with brackets."""

    def of(node: ast.expr) -> Fraction:
        match node:
            case ast.BinOp(left, sign, right):
                value: Fraction = OPERATORS[type(sign)](of(left), of(right))
                return value
            case ast.Name(name):
                return values[name]
            case ast.Constant(int(number)):
                return Fraction(number)
        raise ValueError(f"{expression}: has other parts than sums, products and quotients.")

    return of(ast.parse(expression, mode="eval").body)


def _number(value: Fraction) -> str:
    return f"{value.numerator:,}" if value.denominator == 1 else f"{float(value):.2f}"


def analyze(
    out: Annotated[Path, option("folder for the dumps and their atlases", "FOLDER", type=Path)] = Path("word-problems"),
    seed: Annotated[int, option("seed of the problems and responses", "N", type=int)] = 0,
) -> Finding:
    """Write the dumps, make their atlases, and score the themes."""
    out.mkdir(parents=True, exist_ok=True)
    scores = {}
    for style in STYLES:
        dump = out / f"{style}.jsonl"
        lines = list(rollouts(style, seed))
        dump.write_text("".join(json.dumps(line) + "\n" for line in lines))
        meds(["atlas", str(dump), "--out", str(out / style)])
        scores[style] = _score(out / style, [line["mistake"] for line in lines])
    table = pd.DataFrame(scores).T.rename_axis("style").reset_index()
    return Finding(markdown(table.round(3).astype(str)), {"scores": scores})


def _score(run: Path, mistakes: list[str]) -> dict[str, float]:
    """How well the themes of an atlas agree with the mistakes, given in the order of the dump."""
    atlas = read_atlas(RunPaths(run))
    themes = None if atlas is None else themes_of([atlas])
    assert themes is not None  # there are wrong responses
    table = themes.runs[0].rollouts.assign(mistake=mistakes)
    wrong = table[table["wrong"]]
    themed = wrong[wrong["theme"] >= 0]
    return {
        "kinds": wrong["mistake"].nunique(),
        "themes": len(themes.names),
        "wrong in a theme": len(themed) / len(wrong),
        "adjusted Rand": float(adjusted_rand_score(themed["mistake"], themed["theme"])),
    }


main = Command("word_problems", __doc__, analyze, draws=False)

if __name__ == "__main__":
    sys.exit(main())
