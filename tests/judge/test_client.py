"""The client against a real server: what it sends, how often, and what it makes of bad days."""

import threading
from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.judge.client import JudgeClient
from meds_openrlhf.judge.question import Question, ReplyLine
from meds_openrlhf.judge.settings import JudgeSettings
from tests.judge.judge_server import Judge, Request, Response, Script, judge_server
from tests.ports import silent_address

AT_ONCE = {"Retry-After-Ms": "10"}
KEY = "sk-sesame-0123456789-open"


def _questions(count: int) -> list[Question]:
    return [Question("Score.", f"number {i}", (ReplyLine("SCORE", 1, 3),)) for i in range(count)]


def _client(judge: Judge, cache: Path, **changes: Any) -> JudgeClient:
    settings: dict[str, Any] = {"model": "m", "url": judge.url, "cache": cache, **changes}
    return JudgeClient(JudgeSettings(**settings))


def _scores(request: Request, _: int) -> Response:
    """The score of question i is i % 3 + 1."""
    return Response(f"Well.\nSCORE: {int(request.material.split()[1]) % 3 + 1}")


def _first(*responses: Response) -> Script:
    """These responses to the first requests, and right ones from then on."""
    return lambda request, before: responses[before] if before < len(responses) else _scores(request, before)


def test_answers_come_in_the_order_of_the_questions(tmp_path: Path) -> None:
    with judge_server(_scores) as judge:
        client = _client(judge, tmp_path)
        assert client.ask_all(_questions(5)) == [(1,), (2,), (3,), (1,), (2,)]
    assert {request.path for request in judge.requests} == {"/v1/chat/completions"}
    assert len(judge.requests) == client.tally.requests == 5
    assert client.tally.tokens == 550


def test_a_second_run_asks_nothing_even_at_another_address(tmp_path: Path) -> None:
    with judge_server(_scores) as judge:
        first = _client(judge, tmp_path).ask_all(_questions(5))
    with judge_server(_scores) as judge:
        client = _client(judge, tmp_path)
        assert client.ask_all(_questions(5)) == first
        assert judge.requests == []
        assert (client.tally.cached, client.tally.requests) == (5, 0)
        _client(judge, tmp_path, model="another").ask_all(_questions(5))
        assert len(judge.requests) == 5


def test_equal_questions_are_asked_once(tmp_path: Path) -> None:
    with judge_server(_scores) as judge:
        assert _client(judge, tmp_path).ask_all(_questions(2) * 3) == [(1,), (2,)] * 3
    assert len(judge.requests) == 2


def test_no_more_requests_are_under_way_than_allowed(tmp_path: Path) -> None:
    three = threading.Event()

    def script(request: Request, before: int) -> Response:
        if before == 2:
            three.set()
        return Response("SCORE: 1", seconds=0.1, held=three)

    with judge_server(script) as judge:
        _client(judge, tmp_path, concurrency=3).ask_all(_questions(12))
    assert judge.most_under_way == 3


@pytest.mark.parametrize("status", [408, 429, 503])
def test_passing_failures_are_sent_again(tmp_path: Path, status: int) -> None:
    failure = Response(status=status, headers=AT_ONCE)
    with judge_server(_first(failure, failure)) as judge:
        client = _client(judge, tmp_path)
        assert client.ask_all(_questions(1)) == [(1,)]
    assert len(judge.requests) == 3
    assert client.tally.requests == 1
    assert judge.requests[0].body == judge.requests[2].body
    assert client.tally.asked_again == 0


@pytest.mark.parametrize(
    "body",
    [
        b"[]", b"null", b"{}", b'{"choices": []}', b'{"choices": [{"message": {"content": 3}}]}',
        b'{"choices": [{"text": "x"}]}', b"<html>gateway</html>", b'{"choices": [{"mess', b"\xff\xfe",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["application/json", "text/html"])
def test_what_is_no_chat_completion_is_named(tmp_path: Path, body: bytes, kind: str) -> None:
    response = Response(raw=body, headers={"Content-Type": kind})
    with (
        judge_server(lambda *_: response) as judge,
        pytest.raises(ConfigError, match=r"--judge-url=.*(Name an OpenAI-compatible server|the last time)"),
    ):
        _client(judge, tmp_path).ask_all(_questions(1))


def test_a_judge_that_says_nothing_is_asked_again(tmp_path: Path) -> None:
    with judge_server(_first(Response(raw=b'{"choices": [{"message": {"content": null}}]}'))) as judge:
        assert _client(judge, tmp_path).ask_all(_questions(1)) == [(1,)]


def test_a_server_that_stays_slow_is_named(tmp_path: Path) -> None:
    with judge_server(lambda *_: Response("SCORE: 3", seconds=60.0)) as judge:
        client = _client(judge, tmp_path, timeout=0.1, tries=2)
        message = r"--judge-url=http://127.0.0.1:\d+/v1: failed 2 times, .*timed out"
        with pytest.raises(ConfigError, match=message):
            client.ask_all(_questions(1))


def test_a_server_that_keeps_failing_is_given_up(tmp_path: Path) -> None:
    with judge_server(lambda *_: Response(status=503, raw=b"loading\n the model", headers=AT_ONCE)) as judge:
        client = _client(judge, tmp_path, tries=3)
        with pytest.raises(ConfigError, match="failed 3 times, the last time with status 503: loading the"):
            client.ask_all(_questions(1))
    assert len(judge.requests) == 3


def test_no_server_at_all(tmp_path: Path) -> None:
    with silent_address() as address:
        client = _client(Judge(f"{address}/v1", _scores), tmp_path, tries=2)
        with pytest.raises(ConfigError, match=r"failed 2 times, the last time with: .*[Cc]onnect"):
            client.ask_all(_questions(1))


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, r"--judge-model=m: the server refuses a request \(400\): too long. .*--response-characters"),
        (403, r"--judge-model=m: is not available to this key \(403\): too long"),
        (404, r"--judge-url=.*: has no /chat/completions for the model 'm' \(404\): too long"),
        (302, r"--judge-url=.*: has no /chat/completions for the model 'm' \(302\): too long"),
        (422, r"refuses a request \(422\): too long"),
    ],
)
def test_what_no_waiting_mends_ends_it_at_once(tmp_path: Path, status: int, message: str) -> None:
    with (
        judge_server(lambda *_: Response(status=status, raw=b"too\n long")) as judge,
        pytest.raises(ConfigError, match=message) as refused,
    ):
        _client(judge, tmp_path, concurrency=1).ask_all(_questions(20))
    assert "\n" not in str(refused.value)
    assert len(judge.requests) == 1


def test_of_an_error_in_the_protocols_form_only_the_message_is_shown(tmp_path: Path) -> None:
    body = b'{"error": {"message": "The model `m` does not exist.", "type": "NotFoundError", "code": 404}}'
    with (
        judge_server(lambda *_: Response(status=404, raw=body)) as judge,
        pytest.raises(ConfigError, match=r"\(404\): The model `m` does not exist\.$"),
    ):
        _client(judge, tmp_path).ask_all(_questions(1))


def test_a_refused_key_is_named_by_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with judge_server(lambda *_: Response(status=401, raw=f"bad key {KEY[:8]}***".encode())) as judge:
        with pytest.raises(ConfigError, match="--judge-key-variable=OPENAI_API_KEY: is not set"):
            _client(judge, tmp_path).ask_all(_questions(1))
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        with pytest.raises(ConfigError, match="=OPENAI_API_KEY: has a key that the server refuses") as refused:
            _client(judge, tmp_path).ask_all(_questions(1))
    assert "sesame" not in str(refused.value)
    assert [request.headers.get("authorization") for request in judge.requests] == ["Bearer none", f"Bearer {KEY}"]


@pytest.mark.parametrize("quoted", [KEY, f"'{KEY}'", f"{KEY[:10]}****", f"****{KEY[-6:]}"])
@pytest.mark.parametrize("status", [400, 403, 404, 500])
def test_the_key_is_in_no_error_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, quoted: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    bad = Response(status=status, raw=f"the key {quoted} may not".encode())
    with judge_server(lambda request, before: bad if before else _scores(request, before)) as judge:
        client = _client(judge, tmp_path, tries=1, concurrency=1)
        with pytest.raises(ConfigError, match=r"the key \[key\] may not") as refused:
            client.ask_all(_questions(2))
    assert judge.requests[0].headers["authorization"] == f"Bearer {KEY}"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 1
    for text in (str(refused.value), repr(client), files[0].read_text()):
        assert "sesame" not in text
        assert KEY[-6:] not in text


def _malformed_until(attempt: int) -> Script:
    def script(request: Request, before: int) -> Response:
        good = f"Attempt {attempt}:" in request.material
        return _scores(request, before) if good else Response("I would say 2 out of 3.")

    return script


def test_a_malformed_reply_is_asked_for_again_with_a_reminder(tmp_path: Path) -> None:
    with judge_server(_malformed_until(3)) as judge:
        client = _client(judge, tmp_path)
        assert client.ask_all(_questions(1)) == [(1,)]
        assert ["Attempt" in request.material for request in judge.requests] == [False, True, True]
        assert (client.tally.asked_again, client.tally.malformed) == (2, 0)
        again = _client(judge, tmp_path)
        assert again.ask_all(_questions(1)) == [(1,)]
        assert (len(judge.requests), again.tally.cached) == (3, 3)


def test_what_stays_malformed_has_no_answer_and_is_counted(tmp_path: Path) -> None:
    def script(request: Request, before: int) -> Response:
        return Response("2") if request.material.startswith("number 1") else _scores(request, before)

    with judge_server(script) as judge:
        client = _client(judge, tmp_path)
        assert client.ask_all(_questions(3)) == [(1,), None, (3,)]
        assert len(judge.requests) == 5
        assert (client.tally.asked_again, client.tally.malformed) == (2, 1)
        again = _client(judge, tmp_path)
        assert again.ask_all(_questions(3)) == [(1,), None, (3,)]
        assert len(judge.requests) == 5
    line = again.cost_line()
    assert "0 requests" in line
    assert "5 replies from the cache" in line
    assert "2 malformed replies were asked for again, 1 questions stayed malformed" in line


def test_the_budget_of_requests_keeps_what_is_done(tmp_path: Path) -> None:
    with judge_server(_scores) as judge:
        with pytest.raises(ConfigError, match=r"--budget-requests=4: is used up\. All replies are kept"):
            _client(judge, tmp_path, most_requests=4, concurrency=2).ask_all(_questions(10))
        assert len(judge.requests) == 4
        client = _client(judge, tmp_path, most_requests=6)
        assert client.ask_all(_questions(10))[9] == (1,)
        assert (len(judge.requests), client.tally.cached) == (10, 4)


def test_a_server_that_counts_no_tokens_has_its_replies_kept(tmp_path: Path) -> None:
    with judge_server(lambda *_: Response("SCORE: 1", tokens=False)) as judge:
        for cached in (0, 1):
            client = _client(judge, tmp_path)
            assert client.ask_all(_questions(1)) == [(1,)]
            assert (client.tally.cached, client.tally.tokens) == (cached, 0)


def test_what_is_under_way_when_it_ends_is_kept(tmp_path: Path) -> None:
    def script(request: Request, before: int) -> Response:
        slow = request.material == "number 0"
        return Response("SCORE: 2", seconds=1.0) if slow else Response(status=400, seconds=0.1)

    with judge_server(script) as judge:
        with pytest.raises(ConfigError, match="refuses"):
            _client(judge, tmp_path, concurrency=2).ask_all(_questions(9))
        assert len(judge.requests) == 2
        assert _client(judge, tmp_path).ask_all(_questions(1)) == [(2,)]
        assert len(judge.requests) == 2


def _body(judge: Judge, cache: Path, **changes: Any) -> dict[str, Any]:
    _client(judge, cache, **changes).ask_all(_questions(1))
    return judge.requests[-1].body


def test_fields_of_the_request_are_replaced_added_and_left_out(tmp_path: Path) -> None:
    with judge_server(_scores) as judge:
        messages = [
            {"role": "system", "content": _questions(1)[0].instructions},
            {"role": "user", "content": "number 0"},
        ]
        plain = {"model": "m", "messages": messages, "temperature": 0, "max_tokens": 1024}
        assert _body(judge, tmp_path) == plain
        assert _body(judge, tmp_path, constrained=True) == {**plain, "structured_outputs": {"regex": "SCORE: (1|2|3)"}}
        changes = {"temperature": None, "max_tokens": None, "max_completion_tokens": 9}
        assert _body(judge, tmp_path, request=changes) == {
            "model": "m", "messages": messages, "max_completion_tokens": 9,
        }  # fmt: skip
