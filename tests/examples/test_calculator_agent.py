"""The example of an agent: what its calculator computes and refuses, and what becomes of an episode."""

import asyncio
import importlib.util
import math
import re
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from vllm import SamplingParams

from meds_openrlhf.arithmetic.tiny_policy import build_char_tokenizer

FILE = Path(__file__).parents[2] / "examples/calculator_agent.py"
spec = importlib.util.spec_from_file_location("calculator_agent", FILE)
assert spec is not None
assert spec.loader is not None
agent = importlib.util.module_from_spec(spec)
spec.loader.exec_module(agent)

TOKENIZER = build_char_tokenizer()


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        *[("12*(3+4)", "84"), (" 2 - -3 ", "5"), ("6/2", "3"), ("1/3", "0.333333333333"), ("-" * 30 + "1", "1")],
        *[("9" * 48 + "*10", "9" * 48 + "0"), ("(" * 40 + "1" + ")" * 40, "1")],
    ],
)
def test_values(expression: str, value: str) -> None:
    assert agent.calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        *[(text, "only numbers") for text in ("x + 1", "'a' * 9", "True + 1", "1j", "9**9", "[1, 2]", "1 << 9")],
        ("__import__('os').getcwd()", "only numbers"),
        *[(text, "too large") for text in ("1e999 - 1e999", "1e300 * 1e300")],
        ("7 / (2 - 2)", "division by zero"),
        ("1+" * 60 + "1", "more than 100 characters"),
        *[(text, "cannot be read") for text in ("(1", "")],
    ],
)
def test_refused(expression: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        agent.calculate(expression)


@given(st.text("0123456789.e+-*/%() ", max_size=120))
@example("9e99*" * 19 + "9")
@example("(" * 99)
@example("-" * 100)
def test_every_text_ends_in_a_value_or_a_refusal(text: str) -> None:
    with suppress(ValueError):
        assert math.isfinite(float(agent.calculate(text)))


class ScriptedEngine:
    """Writes the given texts, one a turn, as an engine does that pauses after a call."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.read: list[str] = []
        self.params: list[Any] = []

    async def generate(self, prompt_token_ids: list[int], sampling_params: Any, multi_modal_data: None = None) -> Any:
        self.read.append(TOKENIZER.decode(prompt_token_ids))
        self.params.append(sampling_params)
        text = self.texts.pop(0)
        tokens = TOKENIZER.encode(text)[: sampling_params.max_tokens]
        log_probs = [{token: SimpleNamespace(logprob=-0.5)} for token in tokens]
        reason = "stop" if len(tokens) == len(text) else "length"
        output = SimpleNamespace(token_ids=tokens, text=text[: len(tokens)], finish_reason=reason, logprobs=log_probs)
        return SimpleNamespace(outputs=[output])


def play(engine: ScriptedEngine, label: str, executor: Any = None, max_length: int = 400) -> dict[str, Any]:
    params = SamplingParams(max_tokens=20, logprobs=1)
    before = deepcopy(params)
    words = {"prompt": "ask ", "label": label, "max_length": max_length, "images": None}
    episode = (executor or agent.AgentExecutor()).execute(
        **words, sampling_params=params, hf_tokenizer=TOKENIZER, llm_engine=engine
    )
    response = asyncio.run(episode)
    assert params == before  # other episodes share it
    return response


def test_the_policy_reads_results_and_is_trained_on_its_own_words_alone() -> None:
    own = ["Six: <calc>12*(3+4)</calc>", " and <calc>84/0</calc>", ", so \\boxed{84}"]
    engine = ScriptedEngine(*own)
    response = play(engine, "84.0")
    assert [(one.stop, one.include_stop_str_in_output) for one in engine.params] == [(["</calc>"], True)] * 3
    assert engine.read[-1] == (
        "ask Six: <calc>12*(3+4)</calc><result>84</result>"
        " and <calc>84/0</calc><result>error: division by zero</result>"
    )
    assert (response["reward"], response["scores"]) == (1.0, 1.0)
    assert response["extra_logs"] == {"calls": 2, "failed_calls": 1}
    generator = SamplesGenerator(SimpleNamespace(args=None), None, None, None, [])
    experience = generator._process_response_into_experience(response, max_len=400)
    trained = experience.sequences[0, 1:][experience.action_mask[0].bool()]
    assert TOKENIZER.decode(trained.tolist()) == "".join(own)
    assert (experience.rollout_log_probs[0] != 0).equal(experience.action_mask[0].bool())


class BoxingInstance(agent.AgentInstance):
    """Its calculator puts results into boxes, where they are no answers of the policy."""

    reply = "\\boxed{{{}}}"


@pytest.mark.parametrize(
    ("texts", "score"),
    [
        (["<calc>3+4</calc>", " that is it."], 0),
        (["\\boxed{<calc>3+4</calc>", "}"], 0),  # the braces of an answer do not reach across a reply
        (["\\boxed{7} <calc>4+4</calc>", " yes."], 1),
    ],
)
def test_a_box_in_a_reply_is_no_answer(texts: list[str], score: float) -> None:
    response = play(ScriptedEngine(*texts), "7", agent.AgentExecutor(BoxingInstance))
    assert "\\boxed{" in TOKENIZER.decode(response["observation_tokens"])
    assert (response["reward"], response["scores"]) == (score, score)


def test_calls_without_end_end_as_wrong() -> None:
    calls = ["<calc>1+1</calc>"] * 20
    engine = ScriptedEngine(*calls)
    response = play(engine, "2")
    assert len(engine.read) == agent.MOST_CALLS + 1
    assert (response["reward"], response["extra_logs"]["calls"]) == (0.0, agent.MOST_CALLS)
    short = play(ScriptedEngine(*calls), "2", max_length=60)  # no token is left to the policy
    assert len(short["observation_tokens"]) >= 60
    assert (short["reward"], short["scores"], short["truncated"]) == (0.0, 0.0, False)
