"""An agent with a calculator: the policy may write `<calc>12*(3+4)</calc>`, and reads `<result>84</result>`.

OpenRLHF loads this file by its path (`train.agent_func_path`). Copy it and replace the tool by your own; see
docs/recipes/tools.md.
"""

from __future__ import annotations

import ast
import asyncio
import math
import operator
import re
from copy import deepcopy
from typing import Any

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

from meds_openrlhf.rewards import grading

MOST_CALLS = 8
LONGEST = 100  # characters of an expression, which bounds its depth and its value too
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


class AgentInstance(AgentInstanceBase):
    """One episode: calls of the calculator, then an answer in a box."""

    stop = "</calc>"  # generation pauses after this text
    call = re.compile(r"<calc>([^<>]*)</calc>\Z")
    reply = "<result>{}</result>"

    def __init__(self) -> None:
        self.written: list[str] = []
        self.failed = 0

    async def step(self, states: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Reply to the call at the end of the policy's text; a text without a call ends the episode."""
        self.written.append(states["action_text"])
        call = self.call.search(states["action_text"])
        done = call is None or len(self.written) > MOST_CALLS
        reply, score = "", 0.0
        if done:
            # Only what the policy wrote, with a break where a reply was: an answer does not continue across a reply.
            # In a thread, because some answers take seconds to compare.
            score = float(await asyncio.to_thread(grading.is_right, "\n".join(self.written), states["label"]))
        elif call:
            reply = self.reply.format(self._result(call[1]))
        return {
            "rewards": torch.tensor(score),  # of this turn; OpenRLHF adds them up
            "scores": score,  # of the episode: the last turn's counts
            "environment_feedback": reply,
            "done": done,
            "extra_logs": {"calls": len(self.written) - done, "failed_calls": self.failed},  # the same in every turn
        }

    def _result(self, expression: str) -> str:
        try:
            return calculate(expression)
        except ValueError as error:
            self.failed += 1
            return f"error: {error}"


class AgentExecutor(MultiTurnAgentExecutor):
    """Runs an episode of `AgentInstance` for each response; OpenRLHF looks for this name."""

    def __init__(self, instance: type[AgentInstance] = AgentInstance) -> None:
        super().__init__(instance)

    async def execute(self, *, sampling_params: Any, **kwargs: Any) -> dict[str, Any]:
        """Run an episode in which generation pauses after a call."""
        params = deepcopy(sampling_params)  # all responses to a prompt share the original
        params.stop, params.include_stop_str_in_output = [self.agent_instance_cls.stop], True
        response: dict[str, Any] = await super().execute(sampling_params=params, **kwargs)
        return response


def calculate(expression: str) -> str:
    """Return the value of an expression of numbers, + - * / and parentheses, in microseconds.

    Integers are exact, other results have 12 digits. Raises ValueError for anything else or anything too large.
    """
    if len(expression) > LONGEST:
        raise ValueError(f"more than {LONGEST} characters")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except SyntaxError:
        raise ValueError("cannot be read") from None
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        raise ValueError("too large")
    return format(value, ".12g")


def _value(node: ast.expr) -> int | float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):  # neither text nor True nor complex
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        value: int | float = OPERATORS[type(node.op)](_value(node.left), _value(node.right))
        return value
    raise ValueError("only numbers, + - * / and parentheses")
