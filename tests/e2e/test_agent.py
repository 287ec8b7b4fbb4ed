"""A run whose policy calls a tool, on the real stack: replies come, are not trained on, and errors end nothing."""

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from meds_openrlhf.doctor.trial import LARGEST_KL
from meds_openrlhf.tracking.rollout_log import read_rollouts
from tests.e2e.runs import STEPS, Run, require_memory_at_work

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
    assert all(abs(step["vllm_kl"]) < LARGEST_KL for step in run.steps)
    said = re.findall(r"agent errors: \d+, last ConnectionError: no calculator today \((.+), line", run.output)
    assert len(said) > STEPS / 2
    assert set(said) == {AGENT.name}

    responses = pa.concat_tables(read_rollouts(run.paths, ["response"])).column("response").to_pylist()
    calls = [call for response in responses for call in CALL.findall(response)]
    assert len(calls) > len(responses) / 2
    for left, sign, right, result in calls:
        value = int(left) + int(right) if sign == "+" else int(left) * int(right)
        assert result.startswith(str(value))  # the policy may write more digits behind a reply
