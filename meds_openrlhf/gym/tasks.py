"""Make the problems of reasoning-gym and score answers to them, in the processes of `AnswerVerifier`.

Nine of its scorers evaluate the answer: those that expect a list read it as a literal here, and those that expect an
expression get only arithmetic. Every answer meets a problem of its own, because some scorers change it.

Arithmetic is an allow list of what Python's grammar makes of the text. sympy's functions read a string as an expression
of its own, and Python has many ways to spell a name, so that no search for bad words holds.
"""

from __future__ import annotations

import ast
import base64
import functools
import hashlib
import json
import pickle
import random
import re
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from meds_openrlhf.gym.problem import GymLabel, read_label

_EVALUATE = frozenset(("parse_expr", "sympify"))
_IDENTIFIER = re.compile(r"[A-Za-z]\w*", re.ASCII)
_CHARACTERS = re.compile(r"[\w+\-*/%.,() \t\n]*", re.ASCII)  # no comment or string, about which parsers disagree
_FUNCTIONS = frozenset(
    ("sqrt", "exp", "log", "ln", "abs", "Abs", "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan")
)
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.UAdd, ast.USub)
_LETTER = re.compile(r"[A-Za-z][0-9]?|pi")


def warm_up() -> None:
    """Import the tasks, before limits apply to the process."""
    import reasoning_gym  # noqa: F401


def make(text: str) -> dict[str, Any]:
    """Make the problem of a label: its question, answer (None: it has none; "": no text), digest, entry for `score`.

    With the field ``refused`` in their place if the task does not exist or refuses its settings, ``failed`` if it
    cannot make this problem.
    """
    label = _label(text)
    try:
        task = _task_of(label)
    except Exception as error:  # of many kinds, as the tasks check their settings or do not
        return {"refused": _words(error)}
    try:
        _seed()
        entry = task.dataset[label.index]
        question, answer = str(entry["question"]), entry["answer"]
        answer = answer if isinstance(answer, (str, type(None))) else ""
        digest = hashlib.blake2b(f"{question}\0{answer}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        stored = base64.b64encode(pickle.dumps(entry)).decode()  # made and read in examiners alone
        return {"question": question, "answer": answer, "digest": digest, "entry": stored}
    except Exception as error:  # of many kinds, too
        return {"failed": _words(error)}


def score(text: str, entry: str, answer: str) -> float:
    """The task's own score of an answer to a label's problem, usually from 0 to 1. Raises the scorer's errors."""
    task, problem = _task_of(_label(text)), pickle.loads(base64.b64decode(entry))
    if task.evaluates and not is_arithmetic(answer, set(_IDENTIFIER.findall(problem["answer"]))):
        answer = ""  # which no scorer can read either
    return float(task.dataset.score_answer(answer, problem))


class _Task(NamedTuple):
    dataset: Any
    evaluates: bool  # answers, as expressions


_label = functools.lru_cache(1024)(read_label)


def _task_of(label: GymLabel) -> _Task:
    return _task(label.task, json.dumps(label.settings), label.size, label.seed)


@functools.lru_cache
def _task(name: str, settings: str, size: int, seed: int) -> _Task:
    import reasoning_gym

    _seed()
    dataset = reasoning_gym.create_dataset(name, size=size, seed=seed, **json.loads(settings))
    scorer = type(dataset).score_answer
    if "eval" in scorer.__code__.co_names:
        scorer.__globals__["eval"] = ast.literal_eval
    return _Task(dataset, not _EVALUATE.isdisjoint(scorer.__code__.co_names))


def _seed() -> None:
    """Reset the generators on which a few problems depend, so that a label always makes the same problem."""
    random.seed(0)
    np.random.seed(0)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".removesuffix(": ")


def is_arithmetic(text: str, names: Collection[str] = ()) -> bool:
    """Whether evaluating the text as Python or with sympy can only compute.

    That is: numbers; single letters, pi and ``names``; the signs + - * / // % ** and brackets; and calls of elementary
    functions with such arguments.
    """
    if not _CHARACTERS.fullmatch(text):
        return False
    try:
        return _computes(ast.parse(text.strip(), mode="eval").body, names)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _computes(node: ast.expr, names: Collection[str]) -> bool:
    match node:
        case ast.Constant(value=value):
            return type(value) in (int, float)
        case ast.Name(id=name):
            return name in names or _LETTER.fullmatch(name) is not None
        case ast.UnaryOp(op=op, operand=operand):
            return isinstance(op, _OPERATORS) and _computes(operand, names)
        case ast.BinOp(left=left, op=op, right=right):
            return isinstance(op, _OPERATORS) and _computes(left, names) and _computes(right, names)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return name in _FUNCTIONS and all(_computes(argument, names) for argument in arguments)
    return False
