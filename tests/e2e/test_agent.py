"""A run whose policy calls a tool, on the real stack: replies come and are not trained on; an error ends the run."""

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from meds_openrlhf.rollouts.log import read_rollouts
from meds_openrlhf.step_log import LARGEST_VLLM_KL
from tests.e2e.conftest import command, finished
from tests.e2e.runs import Run, require_memory_at_work

AGENT = Path(__file__).with_name("equals_agent.py")
# A call of two numbers and its reply, after which something was written.
CALL = re.compile(r"(?<![-+*()\d])(\d+)([+*])(\d+) ?=(\d+)(?=.)")


@pytest.mark.slow
def test_a_policy_that_calls_a_calculator(train: Callable[..., Run]) -> None:
    options = ["--meds.reward=null", "--meds.tracking.rollouts=all", "--algo.advantage.is_correction_level=token"]
    run = train(f"--train.agent_func_path={AGENT}", *options)
    require_memory_at_work(run)
    # A call in most episodes, and hardly any that cannot be computed.
    assert all(step["calls"] > 0.5 > 0.2 > step["failed_calls"] for step in run.steps)
    # Engines report no log-probs of a reply's tokens: the 0 in their place would be nats away from the policy's.
    assert all(abs(step["vllm_kl"]) < LARGEST_VLLM_KL for step in run.steps)

    responses = pa.concat_tables(read_rollouts(run.paths, ["response"])).column("response").to_pylist()
    calls = [call for response in responses for call in CALL.findall(response)]
    assert len(calls) > len(responses) / 4  # of the calls counted above, those of two numbers alone
    for left, sign, right, result in calls:
        value = int(left) + int(right) if sign == "+" else int(left) * int(right)
        assert result.startswith(str(value))  # the policy may write more digits behind a reply


RAISES = """
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

class AgentInstance(AgentInstanceBase):
    def __init__(self) -> None: ...

    async def step(self, states, **_):
        raise ConnectionError("no calculator today")

class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self) -> None:
        super().__init__(AgentInstance)
"""


@pytest.mark.parametrize("asynchronous", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_an_agent_that_raises_ends_the_run_with_its_error(
    assets: Path, cluster: str, tmp_path: Path, asynchronous: str
) -> None:
    agent = tmp_path / "mine.py"
    agent.write_text(RAISES)
    options = (f"--train.agent_func_path={agent}", "--meds.reward=null", f"--train.async_enable={asynchronous}")
    ended = finished(command(assets, tmp_path / "run", *options), cluster)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    said = r"meds: the agent raised ConnectionError: no calculator today \(mine.py, line 8\); no checkpoint was saved"
    assert re.search(said, ended.stderr)
