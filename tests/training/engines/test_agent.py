"""An agent that raises: its episode is sampled again, and the user is told how often and where."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from openrlhf.utils.agent import AgentExecutorBase

from meds_openrlhf.training.engines.agent import ATTEMPTS, AgentErrors, RetryingAgent
from meds_openrlhf.training.engines.engine import in_arrays
from meds_openrlhf.training.errors import RunLostError

RESPONSE = {"observation_tokens": [1, 2], "rollout_log_probs": None}


class Flaky(AgentExecutorBase):
    """Raises in its first ``failures`` episodes; changes the sampling settings as OpenRLHF's agents do."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.seen: list[int] = []

    async def execute(self, *, sampling_params: Any, llm_engine: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        self.seen.append(sampling_params.max_tokens)
        sampling_params.max_tokens -= 5
        if len(self.seen) <= self.failures:
            raise KeyError(f"tool {len(self.seen)}\nand more")
        return {**RESPONSE, **kwargs}


def play(flaky: Flaky, errored: bool = False) -> Any:
    engine = SimpleNamespace(llm=SimpleNamespace(errored=errored))
    params = SimpleNamespace(max_tokens=9)
    return asyncio.run(RetryingAgent(flaky).execute(sampling_params=params, llm_engine=engine, prompt="p"))


def test_an_episode_that_raises_is_sampled_again_from_its_beginning() -> None:
    flaky = Flaky(failures=ATTEMPTS - 1)
    response = play(flaky)
    assert response["prompt"] == "p"
    assert flaky.seen == [9] * ATTEMPTS
    first, _second = response["agent_errors"]
    assert first.startswith("KeyError: 'tool 1\\nand more' (test_agent.py, line ")


def test_an_episode_that_always_raises_is_no_response() -> None:
    response = play(Flaky(failures=ATTEMPTS))
    assert list(in_arrays(response)) == ["agent_errors"]
    assert len(response["agent_errors"]) == ATTEMPTS


def test_the_errors_of_a_lost_engine_are_not_the_agents() -> None:
    with pytest.raises(KeyError):
        play(Flaky(failures=1), errored=True)


def test_what_is_told_of_a_batch() -> None:
    errors = AgentErrors()
    assert errors.has_answered([RESPONSE, RESPONSE], prompts=1)
    assert errors.line() is None
    assert errors.has_answered([{**RESPONSE, "agent_errors": ["A (x.py, line 3)"]}, RESPONSE], prompts=1)
    assert errors.line() == "agent errors: 1, last A (x.py, line 3); episodes were sampled again"
    assert not errors.has_answered([RESPONSE, {"agent_errors": ["A", "B", "C"]}], prompts=1)
    assert errors.line() == (
        "agent errors: 4, last C; episodes were sampled again; prompts left out after 3 attempts: 1"
    )


def test_an_agent_that_raises_at_every_prompt_ends_the_run() -> None:
    errors = AgentErrors()
    assert not errors.has_answered([{"agent_errors": ["A"]}], prompts=2)
    with pytest.raises(RunLostError, match="the agent raised in 3 attempts at every prompt: B"):
        errors.has_answered([{"agent_errors": ["B"]}], prompts=2)
