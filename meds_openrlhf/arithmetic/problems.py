"""The demo's task: small arithmetic problems, typical mistakes in them, and worked solutions with varied wording.

Mistakes are systematic: each is a wrong way to read an expression or to calculate a step, so the same problem with the
same mistake always gives the same wrong answer, while the wording of every solution is random. This reproduces in
miniature the collapse that memory-enhanced shaping addresses: few recurring errors in many different texts.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST_SOLUTION = 64

OPENINGS = ("", "", "First ", "So ", "Now ", "Well, ", "OK, ", "Here ")
EQUALS = ("=", " = ", " is ")
JOINERS = (", ", "; ", ". ", ", then ", ", so ", " and ")
CLOSINGS = (". ", ": ", ". So ", ". Thus ", " -> ", ", hence ")

# The wording's texts of several characters, which are single tokens for the demo's policy.
PIECES = ("\\boxed{", *(text for text in (*OPENINGS, *EQUALS, *JOINERS, *CLOSINGS) if len(text) > 1))

# A calculation from left to right is parsed with operators that have the same rank in Python.
_SAME_RANK = str.maketrans("+-", "/%")
_SYMBOLS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "+", ast.Mod: "-"}
_COLUMN_ADDITION = re.compile(r"(\d\d)\+(\d\d)")


@dataclass(frozen=True)
class Family:
    """What problems are drawn from. ``count`` is how many of them there surely are."""

    shapes: tuple[str, ...]  # lower-case letters stand for small numbers, upper-case letters for large ones
    small: tuple[int, int]  # from, to
    large: tuple[int, int]
    largest_value: int  # of any result, right or wrong
    count: int


DEMO = Family(
    shapes=("a+b*c", "(a+b)*c", "(a-b)*c", "a*b-c", "a*(b-c)", "A+B", "(a-b)*c-d"),
    small=(2, 6),
    large=(12, 29),
    largest_value=99,
    count=800,
)


@dataclass(frozen=True)
class Problem:
    """An arithmetic expression over non-negative integers with `+ - *` and brackets, and its right answer."""

    expression: str
    answer: int


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A systematic mistake; with all defaults, the calculation is right."""

    name: str
    keeps_brackets: bool = True
    keeps_precedence: bool = True
    carries: bool = True
    subtraction_sign: int = 1
    overshoot: int = 0  # added to the result of every addition and subtraction


@dataclass(frozen=True)
class Working:
    """The steps of a solution, each `(left-hand side, result)`, and the resulting answer."""

    steps: tuple[tuple[str, int], ...]
    answer: int


NO_MISTAKE = Mistake(name="none")

# Most likely first: the first two mistakes that change a problem's answer are its dominant mistakes.
MISTAKES = (
    Mistake(name="ignored brackets", keeps_brackets=False),
    Mistake(name="left to right", keeps_precedence=False),
    Mistake(name="lost carry", carries=False),
    Mistake(name="flipped subtraction", subtraction_sign=-1),
    Mistake(name="off by one", overshoot=1),
)
# Up to four of these at once, and one too few.
TOGETHER = tuple(
    Mistake(
        name=" + ".join(mistake.name for mistake in made),
        keeps_brackets=all(mistake.keeps_brackets for mistake in made),
        keeps_precedence=all(mistake.keeps_precedence for mistake in made),
        carries=all(mistake.carries for mistake in made),
        subtraction_sign=min(mistake.subtraction_sign for mistake in made),
        overshoot=sum(mistake.overshoot for mistake in made),
    )
    for count in range(1, 5)
    for made in itertools.combinations((*MISTAKES, Mistake(name="one too few", overshoot=-1)), count)
    if not {"off by one", "one too few"} <= {mistake.name for mistake in made}
)


def make_problem(expression: str) -> Problem:
    """Make a problem from an expression, e.g. `(7-2)*6-5`. Raises ValueError if it cannot be parsed."""
    return Problem(expression, work(expression).answer)


def work(expression: str, mistake: Mistake = NO_MISTAKE) -> Working:
    """Calculate an expression step by step, with the same mistake throughout (none by default).

    The sum of two two-digit numbers is calculated by columns, everything else operation by operation.
    """
    columns = _COLUMN_ADDITION.fullmatch(expression)
    if columns:
        return _add_by_columns(int(columns[1]), int(columns[2]), mistake)
    steps: list[tuple[str, int]] = []
    value = _calculate(_parsed(expression, mistake), mistake, steps)
    return Working(tuple(steps), value)


def telling_mistakes(problem: Problem, mistakes: Sequence[Mistake] = MISTAKES) -> tuple[Mistake, ...]:
    """The mistakes that change the problem's answer, most likely first, each to a different answer."""
    answers = [problem.answer]
    telling = []
    for mistake in mistakes:
        working = work(problem.expression, mistake)
        two_operators_in_a_row = any(re.search(r"[-+*]-", left) for left, _ in working.steps)
        if working.answer not in answers and not two_operators_in_a_row:
            answers.append(working.answer)
            telling.append(mistake)
    return tuple(telling)


def dominant_mistakes(problem: Problem) -> tuple[Mistake, ...]:
    """The two most likely `telling_mistakes`, or fewer if it has fewer."""
    return telling_mistakes(problem)[:2]


def draw_problems(count: int, seed: int, family: Family = DEMO) -> tuple[Problem, ...]:
    """Draw `count` distinct problems, each with two dominant mistakes; a larger count continues the same sequence.

    Raises ValueError if count is negative or above the family's.
    """
    if not 0 <= count <= family.count:
        raise ValueError(f"count={count}: must be from 0 to {family.count}, the problems of this family.")
    generator = random.Random(f"problems-{seed}")
    drawn: dict[str, Problem] = {}
    while len(drawn) < count:
        problem = make_problem(_draw_expression(generator, family))
        if _is_suitable(problem, family):
            drawn.setdefault(problem.expression, problem)
    return tuple(drawn.values())


def write_solution(problem: Problem, mistake: Mistake, generator: random.Random) -> str:
    """Write a worked solution with the mistake, in random words from the generator, ending with `\\boxed{ANSWER}`.

    It has at most LONGEST_SOLUTION characters; solutions of the same problem with the same mistake are rarely equal.
    """
    working = work(problem.expression, mistake)
    while True:
        steps = [f"{left}{generator.choice(EQUALS)}{result}" for left, result in working.steps]
        text = generator.choice(OPENINGS) + steps[0]
        for step in steps[1:]:
            text += generator.choice(JOINERS) + step
        text += f"{generator.choice(CLOSINGS)}\\boxed{{{working.answer}}}"
        if len(text) <= LONGEST_SOLUTION:
            return text


def _draw_expression(generator: random.Random, family: Family) -> str:
    def number(letter: re.Match[str]) -> str:
        return str(generator.randint(*(family.small if letter[0].islower() else family.large)))

    return re.sub("[a-zA-Z]", number, generator.choice(family.shapes))


def _is_suitable(problem: Problem, family: Family) -> bool:
    """Whether it has two dominant mistakes, no result beyond the largest, and no negative results if done right."""
    mistakes = dominant_mistakes(problem)
    workings = [work(problem.expression, mistake) for mistake in (NO_MISTAKE, *mistakes)]
    small = all(abs(result) <= family.largest_value for working in workings for _, result in working.steps)
    return len(mistakes) == 2 and small and all(result >= 0 for _, result in workings[0].steps)


def _add_by_columns(left: int, right: int, mistake: Mistake) -> Working:
    ones = left % 10 + right % 10 + mistake.overshoot
    carry = ones // 10 if mistake.carries else 0
    tens = left // 10 + right // 10 + carry + mistake.overshoot
    tens_text = f"{left // 10}+{right // 10}" + (f"+{carry}" if carry else "")
    return Working(((f"{left % 10}+{right % 10}", ones), (tens_text, tens)), tens * 10 + ones % 10)


def _add_without_carrying(left: int, right: int) -> int:
    total, place = 0, 1
    while left or right:
        total += (left + right) % 10 * place
        left, right, place = left // 10, right // 10, place * 10
    return total


def _parsed(expression: str, mistake: Mistake) -> ast.expr:
    text = expression if mistake.keeps_brackets else expression.replace("(", "").replace(")", "")
    if re.fullmatch(r"[\d+*()-]+", text):
        with contextlib.suppress(SyntaxError):
            return ast.parse(text if mistake.keeps_precedence else text.translate(_SAME_RANK), mode="eval").body
    raise _unreadable(expression)


def _calculate(node: ast.expr, mistake: Mistake, steps: list[tuple[str, int]]) -> int:
    """The value of a parsed expression; adds its operations to ``steps`` in the order of their execution."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if not isinstance(node, ast.BinOp) or type(node.op) not in _SYMBOLS:
        raise _unreadable(ast.unparse(node))
    left, right = (_calculate(part, mistake, steps) for part in (node.left, node.right))
    symbol = _SYMBOLS[type(node.op)]
    if symbol == "*":
        result = left * right
    elif symbol == "-":
        result = mistake.subtraction_sign * (left - right) + mistake.overshoot
    else:
        without_carry = not mistake.carries and left >= 0 and right >= 0
        result = (_add_without_carrying(left, right) if without_carry else left + right) + mistake.overshoot
    steps.append((f"{left}{symbol}{right}", result))
    return result


def _unreadable(expression: str) -> ValueError:
    return ValueError(f"expression={expression}: must consist of integers, + - * and matched brackets.")
