"""Agents that engines could not load are refused before anything starts."""

from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.training.preparation import agents

WITHOUT_INSTANCE = """
from openrlhf.utils.agent import MultiTurnAgentExecutor

class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(AgentInstance)
"""
NO_EXECUTOR = "class AgentExecutor:\n    pass\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("import no_such_tool\nclass AgentExecutor: ...\n", "ModuleNotFoundError: No module named 'no_such_tool'"),
        (WITHOUT_INSTANCE, "NameError: name 'AgentInstance' is not defined"),
        (NO_EXECUTOR, "AssertionError: AgentExecutor must inherit from AgentExecutorBase"),
    ],
)
def test_an_agent_that_cannot_be_loaded(tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(content)
    with pytest.raises(ConfigError) as raised:
        agents.require_loadable(str(file))
    assert str(raised.value).startswith(f"train.agent_func_path: '{file}' cannot be loaded: {reason}; every engine")


def test_a_run_without_an_agent_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents.subprocess, "run", None)
    agents.require_loadable(None)
