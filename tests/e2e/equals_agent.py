"""The example's agent for the demo's policy, which calls no tool but writes many an "=": the calculator goes on there.

Every 29th turn in an engine raises.
"""

import importlib.util
import itertools
import re
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples/calculator_agent.py"
spec = importlib.util.spec_from_file_location("calculator_agent", EXAMPLE)
calculator_agent = importlib.util.module_from_spec(spec)
spec.loader.exec_module(calculator_agent)

turns = itertools.count(1)


class AgentInstance(calculator_agent.AgentInstance):
    stop = "="
    call = re.compile(r"([-+*()\d]+) ?=\Z")
    reply = "{}"

    async def step(self, states: dict[str, Any], **_: Any) -> dict[str, Any]:
        if next(turns) % 29 == 0:
            raise ConnectionError("no calculator today")
        return await super().step(states)


class AgentExecutor(calculator_agent.AgentExecutor):
    def __init__(self) -> None:
        super().__init__(AgentInstance)
