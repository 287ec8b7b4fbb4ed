"""What an engine answers with."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.utils import vlm_utils
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor, SingleTurnAgentExecutor
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from meds_openrlhf.runtime.errors import RunLostError
from meds_openrlhf.training.step.engine import RestartableEngine, in_arrays
from tests.training.step.test_batches import require_equal


@given(seed=st.integers(0, 999), cut=st.integers(3, 30), log_probs=st.booleans())
def test_openrlhf_makes_the_same_experience_of_arrays(seed: int, cut: int, log_probs: bool) -> None:
    draws = np.random.default_rng(seed)
    prompt, length = int(draws.integers(1, 5)), int(draws.integers(0, 20))
    response = {
        "prompt": "p", "label": "l", "reward": 1.0, "scores": 0.5, "truncated": False, "extra_logs": {"tries": 2},
        "observation_tokens": draws.integers(0, 150_000, prompt + length).tolist(),
        "action_ranges": [(prompt, prompt + length)],
        "rollout_log_probs": draws.normal(size=prompt + length).tolist() if log_probs else None,
    }  # fmt: skip
    generator, sent = SamplesGenerator(SimpleNamespace(args=None), None, None, None, []), in_arrays(response)
    assert sent["observation_tokens"].dtype == np.int32  # half the bytes of a list
    assert not log_probs or sent["rollout_log_probs"].dtype == np.float32
    found = generator._process_response_into_experience(sent, max_len=cut)
    require_equal(found, generator._process_response_into_experience(response, max_len=cut))


class Agent:
    """Answers with the kind of output that it was told to ask vLLM for."""

    async def execute(self, *, sampling_params: SamplingParams, hf_tokenizer: str, **_: Any) -> dict[str, Any]:
        return {"kind": sampling_params.output_kind, "tokenizer": hf_tokenizer, "observation_tokens": [1]}


class Raising:
    async def execute(self, **_: Any) -> dict[str, Any]:
        raise KeyError("tool 1\nand more")


def responses_of(
    executor: Any, agent: str | None = "mine.py", tokenizer: Any = "tokenizer", errored: bool = False, **request: Any
) -> list[dict[str, Any]]:
    """Two responses of an engine with this executor, in which vLLM is lost if it is ``errored``."""
    engine = RestartableEngine.__new__(RestartableEngine)
    engine._has_weights, engine._tokenizer = True, tokenizer
    engine._given = (), {"agent_func_path": agent} if agent else {}
    engine.executor, engine.llm = executor, SimpleNamespace(errored=errored)
    request = {"sampling_params": SamplingParams(), "max_length": 9, **request}
    return asyncio.run(engine.generate_responses(prompt="p", label="l", num_samples=2, **request))


def test_a_response_is_handed_over_once() -> None:
    first, second = responses_of(Agent())
    assert first["kind"] == second["kind"] == RequestOutputKind.FINAL_ONLY
    assert first["tokenizer"] == "tokenizer"


def test_an_agent_that_raises_ends_the_run_with_its_error() -> None:
    with pytest.raises(
        RunLostError, match=r"the agent raised KeyError: 'tool 1\\nand more' \(test_engine.py, line \d+\)"
    ):
        responses_of(Raising())


class Observing(AgentInstanceBase):
    """Begins with the prompt."""

    def __init__(self) -> None: ...

    async def reset(self, states: dict[str, Any], **_: Any) -> dict[str, Any]:
        return states

    async def step(self, states: dict[str, Any], **_: Any) -> dict[str, Any]:
        raise AssertionError


@pytest.mark.parametrize("executor", [SingleTurnAgentExecutor(), MultiTurnAgentExecutor(Observing)])
def test_a_prompt_that_is_too_long_with_its_images_has_no_responses(
    executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenRLHF's own executors refuse it; the processor makes 20 tokens of prompt and images, and 19 are left."""
    monkeypatch.setattr(vlm_utils, "process_prompt_with_images", lambda *_: ([1] * 20, {}, ["image"]))
    request = {"images": ["a"], "max_length": 24, "sampling_params": SamplingParams(max_tokens=5)}
    assert responses_of(executor, agent=None, tokenizer=SimpleNamespace(image_processor=1), **request) == []


def test_the_errors_of_a_lost_engine_are_not_the_agents() -> None:
    with pytest.raises(KeyError):
        responses_of(Raising(), errored=True)
