"""The example's agent for the policy of the demo, which writes no call but many an "=": a calculator answers it."""

import importlib.util
import re
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples/calculator_agent.py"
spec = importlib.util.spec_from_file_location("calculator_agent", EXAMPLE)
calculator_agent = importlib.util.module_from_spec(spec)
spec.loader.exec_module(calculator_agent)


class AgentInstance(calculator_agent.AgentInstance):
    stop = "="
    call = re.compile(r"([-+*()\d]+) ?=\Z")
    reply = "{}"


class AgentExecutor(calculator_agent.AgentExecutor):
    def __init__(self) -> None:
        super().__init__(AgentInstance)
