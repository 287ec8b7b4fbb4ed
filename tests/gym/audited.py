"""Answers to the tasks of reasoning-gym; run as a program, it scores hostile ones to every task.

It prints what the audit hook of Python sees beyond parsing. The answers are attacks, and random sequences of pieces of
Python. They are scored here, as in an examiner.
"""

from __future__ import annotations

import json
import random
import string
import sys
from contextlib import suppress

from reasoning_gym.factory import DATASETS

from meds_openrlhf.gym import tasks
from meds_openrlhf.gym.problem import GymLabel, read_label
from meds_openrlhf.gym.tasks import is_arithmetic

# Tasks without answers; they cannot be trained on.
WITHOUT_ANSWERS = {"boxnet", "composite", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}


def answers(own: str, others: list[str]) -> list[str]:
    """The task's own answer, answers to two other problems, and eleven more."""
    rows = [line.split() for line in own.splitlines()]
    numbers = [[int(word) if word.lstrip("-").isdecimal() else word for word in row] for row in rows]
    lists = [repr(list(own)), repr(own.split()), repr(numbers)]
    changed = [own[::-1], own[:-1], f"{own}1", f"{own} + 1", f"({own})*2"]
    return [own, *others, *changed, "0", "I do not know", "", *lists]


PIECES = (
    *("1", "23", "x", "C", "pi", "+", "-", "*", "/", "**", "%", "(", ")", ",", "[", "]", "{", "}", ":", ".", "'", '"'),
    *("\\", "#", ":=", "=", ";", "@", "^", "!", "%c", "%s*3", "sin(", "exp(", "log", "sqrt(", "Abs(", "eval", "exec"),
    *("open", "compile", "__import__", "getattr", "os", "system", "lambda:", "if", "else", "for", "in", "not", "and"),
    *("await", "yield", "_", "__class__", "1j", "0x1f", "1_0", "1e5", "...", "None", "f'", "'x'", '"os"', "''.join"),
    *("(95,95)", "sympify(", "S(", "Symbol(", "N(", "preview", "lambdify(", "\uff53", "\u2212", "\x00", " ", "\n"),
)
# What code names when sympy evaluates an expression: itself, its classes, elementary functions, letters.
NAMES = {"sympy", "Integer", "Float", "Symbol", "sin", "cos", "exp", "log", "sqrt", "Abs", "pi", *string.ascii_letters}


def hidden(code: str) -> str:
    """An expression that sympy would read as the code, without a sign of it: `%c` makes the characters."""
    signs = "_().'%/=:,; \""
    shown = "".join("%c" if character in signs else character for character in code)
    return f"sin('{shown}'%({','.join(str(ord(character)) for character in code if character in signs)},))"


def attacks(mark: str) -> list[str]:
    """Answers that would make the file ``mark`` if they were evaluated."""
    touch = f"open('{mark}','w')"
    attribute = f"__import__('pathlib').Path('{mark}').touch()"
    forms = ["{}", "[{}]", "''.join({})", "(x:={})", "[c for c in [{}]]", "sin(x={})", "sin(*{})", "{{{}}}"]
    forms += ["1 if {} else 2"]
    return [*(form.format(touch) for form in forms), attribute, f"'{attribute}'", hidden(attribute), hidden(touch)]


def main(mark: str) -> None:
    generator = random.Random(0)
    texts = ["".join(generator.choices(PIECES, k=generator.randint(1, 12))) for _ in range(400)]
    sums = [generator.choice(("x", "3", "sin(x)", "2*pi")) + generator.choice("+-*/") + "(7 - x**2)" for _ in range(50)]
    assert all(map(is_arithmetic, sums))
    labels = {
        name: GymLabel(task=name, size=3, seed=0, index=1).as_text() for name in DATASETS.keys() - WITHOUT_ANSWERS
    }
    made = {name: tasks.make(text) for name, text in sorted(labels.items())}
    seen: list[str] = []

    def hook(event: str, arguments: tuple) -> None:
        names = arguments[0].co_names if event == "exec" else ()
        if event not in ("compile", "exec", "pickle.find_class") or not NAMES.issuperset(names):
            seen.append(f"{event} {names} {str(arguments)[:100]}")

    def score(name: str, answers: list[str]) -> None:
        for answer in answers:
            with suppress(Exception):
                tasks.score(labels[name], made[name]["entry"], answer)

    for name in labels:  # what is imported late is imported before the hook
        score(name, [made[name]["answer"], "[[1]]", *sums])
    sys.addaudithook(hook)
    for name in labels:
        score(name, [*attacks(mark), *sums[:10], *texts[:20]])
    thorough = "countdown puzzle24 simple_integration polynomial_multiplication string_insertion n_queens"
    for name in thorough.split():
        score(name, texts)
    for text in (*attacks(mark), *texts):
        for setting in (text, [text], {"a": text}):
            with suppress(ValueError):
                read_label(labels["chain_sum"].replace("{}", json.dumps({"operators": setting})))
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1])
