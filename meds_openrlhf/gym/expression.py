"""Which answers a scorer may evaluate: arithmetic, by an allow list of what Python's grammar makes of the text.

sympy's functions read a string as an expression of its own, and Python has many ways to spell a name, so that no search
for bad words holds. Here everything that is not listed is refused.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection

_CHARACTERS = re.compile(r"[\w+\-*/%.,() \t\n]*", re.ASCII)  # no comment or string, about which parsers disagree
_FUNCTIONS = frozenset(
    ("sqrt", "exp", "log", "ln", "abs", "Abs", "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan")
)
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.UAdd, ast.USub)
_LETTER = re.compile(r"[A-Za-z][0-9]?|pi")


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
