"""Which answers may be evaluated: arithmetic and nothing else."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.gym.expression import is_arithmetic
from tests.gym.audited import attacks


@pytest.mark.parametrize(
    "text",
    [
        *("7", " 2*(7 - 3) ", "-5*x**3/3 + C", "exp(-x)*sin(2*x)/2 - pi", "7 // 2 % 3", "log(x, 10)"),
        *("1e3", "0x1f", "1_000", "sqrt(sqrt(x1))", "+-1", "Abs(-3)", "(\n1*3*5 + 9\n)"),
    ],
)
def test_arithmetic_is_computed(text: str) -> None:
    assert is_arithmetic(text)


@pytest.mark.parametrize(
    "text",
    [
        *attacks("/tmp/x"),
        *(
            "",
            "7 +",
            "'7'",
            "1 if 1 else 2",
            "[1]",
            "(1, 2)",
            "{1}",
            "{1: 2}",
            "1 < 2",
            "1 and 2",
            "not 1",
            "~1",
            "1 | 2",
        ),
        *(
            "x.real",
            "x[0]",
            "f(2)",
            "(sin)(2)(3)",
            "sin(2)(3)",
            "sin(x=2)",
            "sin(*x)",
            "sin(**x)",
            "lambda: 1",
            "x := 1",
        ),
        *(
            "(x := 1)",
            "await x",
            "(yield)",
            "1j",
            "...",
            "None",
            "True",
            "f'{1}'",
            "b'1'",
            "1; 2",
            "1 # 2",
            "1\\\n+2",
            "1\n+2",
        ),
        *("\uff53in(2)", "\u0663", "2\u00d73", "__import__", "eval", "alpha"),
        *("(" * 5000 + "1" + ")" * 5000, "-" * 100_000 + "1", "1+" * 100_000 + "1", "9" * 5000),
    ],
    ids=lambda text: text[:20],
)
def test_everything_else_is_refused(text: str) -> None:
    assert not is_arithmetic(text)


def test_a_task_may_know_more_names_but_no_functions() -> None:
    assert is_arithmetic("2*alpha", {"alpha"})
    assert not is_arithmetic("alpha(2)", {"alpha"})
    assert not is_arithmetic("beta", {"alpha"})


@given(st.text("019xC+-*/%.,()[]{}'\"\\_=:;!#@ \nsinpeva", max_size=40))
def test_what_is_arithmetic_names_calls_and_quotes_nothing_else(text: str) -> None:
    if is_arithmetic(text):
        code = compile(text.strip(), "answer", "eval")
        assert all(re.fullmatch(r"[a-zA-Z]\d?|pi|sin", name) for name in code.co_names)
        assert all(isinstance(constant, (int, float, tuple)) for constant in code.co_consts)
