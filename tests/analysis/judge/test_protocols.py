"""Bodies as the two protocols want them, and what is read out of theirs."""

from pathlib import Path
from typing import Any

import pytest

from analysis.judge.protocols import PROTOCOLS, Reply, UnreadableReplyError
from analysis.judge.question import Question, ReplyLine
from analysis.judge.settings import JudgeSettings

QUESTION = Question("Score.", "the material", (ReplyLine("SCORE", 1, 3),))
OPENAI, ANTHROPIC = PROTOCOLS["openai"], PROTOCOLS["anthropic"]


def _settings(**changes: Any) -> JudgeSettings:
    return JudgeSettings(**{"model": "m", "cache": Path("cache"), **changes})


def test_the_chat_completions_body() -> None:
    assert OPENAI.body(_settings(), QUESTION, 1) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": QUESTION.instructions},
            {"role": "user", "content": "the material"},
        ],
        "temperature": 0,
        "max_tokens": 1024,
    }


def test_the_messages_body() -> None:
    assert ANTHROPIC.body(_settings(protocol="anthropic", reply_tokens=50), QUESTION, 1) == {
        "model": "m",
        "system": QUESTION.instructions,
        "messages": [{"role": "user", "content": "the material"}],
        "temperature": 0,
        "max_tokens": 50,
    }


@pytest.mark.parametrize("protocol", [OPENAI, ANTHROPIC])
def test_later_attempts_are_reminded_of_the_form_and_are_other_requests(protocol: Any) -> None:
    bodies = [protocol.body(_settings(), QUESTION, attempt) for attempt in (1, 2, 3)]
    contents = [body["messages"][-1]["content"] for body in bodies]
    assert contents[1] == (
        "the material\n\nAttempt 2: the reply before did not end with the form asked for, which is\nSCORE: <1 to 3>"
    )
    assert len(set(contents)) == 3


def test_fields_of_the_request_are_replaced_added_and_left_out() -> None:
    changes = {"temperature": None, "max_tokens": None, "max_completion_tokens": 9}
    body = OPENAI.body(_settings(request=changes), QUESTION, 1)
    assert sorted(body) == ["max_completion_tokens", "messages", "model"]
    assert body["max_completion_tokens"] == 9


def test_a_constrained_judge_gets_the_pattern() -> None:
    body = OPENAI.body(_settings(constrained=True), QUESTION, 1)
    assert body["structured_outputs"] == {"regex": "SCORE: (1|2|3)"}


def test_keys_are_in_the_protocols_own_header() -> None:
    assert OPENAI.headers("k") == {"Authorization": "Bearer k"}
    assert OPENAI.headers(None) == {}
    assert ANTHROPIC.headers("k") == {"anthropic-version": "2023-06-01", "x-api-key": "k"}
    assert ANTHROPIC.headers(None) == {"anthropic-version": "2023-06-01"}


def test_replies_are_read() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 2}
    assert OPENAI.read({"choices": [{"message": {"content": "SCORE: 2"}}], "usage": usage}) == Reply("SCORE: 2", 9)
    assert OPENAI.read({"choices": [{"message": {"content": None}}]}) == Reply("", None)
    blocks = [{"type": "thinking", "thinking": "x"}, {"type": "text", "text": "SCORE"}, {"type": "text", "text": ": 2"}]
    usage = {"input_tokens": 7, "output_tokens": 2}
    assert ANTHROPIC.read({"content": blocks, "usage": usage}) == Reply("SCORE: 2", 9)


@pytest.mark.parametrize(
    "body", [[], None, {}, {"choices": []}, {"choices": [{"message": {"content": 3}}]}, {"choices": [{"text": "x"}]}]
)
def test_what_is_no_chat_completion_is_refused(body: Any) -> None:
    with pytest.raises(UnreadableReplyError):
        OPENAI.read(body)


@pytest.mark.parametrize("body", [[], None, {}, {"content": "text"}, {"content": [{"type": "text"}]}])
def test_what_is_no_message_is_refused(body: Any) -> None:
    with pytest.raises(UnreadableReplyError):
        ANTHROPIC.read(body)
