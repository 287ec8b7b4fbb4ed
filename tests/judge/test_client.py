"""The client against a real server: what it sends, how often, and what it makes of bad days."""

import gzip
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.judge.client import MOST_REPLY, JudgeClient, Reply, ReplyCache
from meds_openrlhf.judge.question import Question, ReplyLine, instructions
from meds_openrlhf.judge.settings import JudgeSettings
from tests.http_server import JsonHandler, serving
from tests.judge.judge_server import Judge, Request, Response, Script, judge_server

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


def test_answers_are_in_the_order_of_the_questions_and_each_is_asked_once(tmp_path: Path) -> None:
    with judge_server(_scores) as judge:
        client = _client(judge, tmp_path)
        first = client.ask_all(_questions(5) * 2)
        assert first == [(1,), (2,), (3,), (1,), (2,)] * 2
    assert {request.path for request in judge.requests} == {"/v1/chat/completions"}
    assert len(judge.requests) == client.tally.requests == 5
    assert client.tally.tokens == 550
    with judge_server(_scores) as judge:  # at another address
        client = _client(judge, tmp_path)
        assert client.ask_all(_questions(5) * 2) == first
        assert judge.requests == []
        assert (client.tally.cached, client.tally.requests) == (5, 0)
        _client(judge, tmp_path, model="another").ask_all(_questions(5))
        assert len(judge.requests) == 5


def test_no_more_requests_are_under_way_than_allowed(tmp_path: Path) -> None:
    three = threading.Event()

    def script(request: Request, before: int) -> Response:
        if before == 2:
            three.set()
        return Response("SCORE: 1", seconds=0.1, held=three)

    with judge_server(script) as judge:
        _client(judge, tmp_path, concurrency=3).ask_all(_questions(12))
    assert judge.most_under_way == 3


def test_passing_failures_are_sent_again(tmp_path: Path) -> None:
    failures = [Response(status=status, headers=AT_ONCE) for status in (408, 409, 429, 503)]
    with judge_server(_first(*failures)) as judge:
        client = _client(judge, tmp_path)
        assert client.ask_all(_questions(1)) == [(1,)]
    assert len(judge.requests) == 5
    assert (client.tally.requests, client.tally.asked_again) == (1, 0)
    assert judge.requests[0].body == judge.requests[4].body


HTML, OPENAI = {"Content-Type": "text/html"}, r"Name an OpenAI-compatible server|the last time"
PACKED = gzip.compress(b" " * 100_000_000)


@pytest.mark.parametrize(
    ("body", "headers", "reason"),
    [
        *((body, {}, OPENAI) for body in (b"[]", b'{"choices": []}', b'{"choices": [{"message": {"content": 3}}]}')),
        *((body, headers, OPENAI) for body in (b"<html>gateway</html>", b"\xff\xfe") for headers in ({}, HTML)),
        (b" " * (MOST_REPLY + 1), {}, "failed 1 times, the last time with: .*the reply has more than 4 MiB"),
        (PACKED, {"Content-Encoding": "gzip"}, "failed 1 times, the last time with: .*the reply is compressed"),
    ],
    ids=lambda value: type(value).__name__,  # the bodies are long
)
def test_what_is_no_chat_completion_is_named(tmp_path: Path, body: bytes, headers: dict[str, str], reason: str) -> None:
    response = Response(raw=body, headers=headers)
    refused = pytest.raises(ConfigError, match=rf"--judge-url=.*({reason})")
    with judge_server(lambda *_: response) as judge, refused:
        _client(judge, tmp_path, tries=1).ask_all(_questions(1))


def test_a_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with judge_server(lambda *_: Response("SCORE: 3", seconds=60.0)) as slow:
        closed = Judge("http://127.0.0.1:1/v1", _scores)
        for judge, seconds, reason in ((slow, 0.1, "timed out"), (closed, 60.0, "[Cc]onnect")):
            with pytest.raises(ConfigError, match=rf"--judge-url={judge.url}: failed 2 times, .*{reason}"):
                _client(judge, tmp_path, timeout=seconds, tries=2).ask_all(_questions(1))


@pytest.mark.parametrize(
    ("status", "body", "message", "requests"),
    [
        (400, b"too\n long", r"--judge-model=m: the server refuses a request \(400\): too long. .*--response-char", 1),
        (403, b"no", r"--judge-model=m: is not available to this key \(403\): no", 1),
        (302, b"elsewhere", r"--judge-url=.*: has no /chat/completions for the model 'm' \(302\): elsewhere", 1),
        (404, b'{"error": {"message": "No `m`.", "type": "NotFoundError", "code": 404}}', r"'m' \(404\): No `m`\.$", 1),
        (503, b"loading\n the model", "failed 3 times, the last time with status 503: loading the", 3),
    ],
)
def test_what_no_waiting_mends_ends_it_at_once_and_all_else_after_some_tries(
    tmp_path: Path, status: int, body: bytes, message: str, requests: int
) -> None:
    with (
        judge_server(lambda *_: Response(status=status, raw=body, headers=AT_ONCE)) as judge,
        pytest.raises(ConfigError, match=message) as refused,
    ):
        _client(judge, tmp_path, concurrency=1, tries=3).ask_all(_questions(20))
    assert "\n" not in str(refused.value)
    assert len(judge.requests) == requests


def test_a_refused_key_is_named_by_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with judge_server(lambda *_: Response(status=401, raw=f"bad key {KEY[:8]}***".encode())) as judge:
        with pytest.raises(ConfigError, match="--judge-key-variable=OPENAI_API_KEY: is not set"):
            _client(judge, tmp_path).ask_all(_questions(1))
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        with pytest.raises(ConfigError, match="=OPENAI_API_KEY: has a key that the server refuses") as refused:
            _client(judge, tmp_path).ask_all(_questions(1))
    assert "sesame" not in str(refused.value)
    assert [request.headers.get("authorization") for request in judge.requests] == ["Bearer none", f"Bearer {KEY}"]


@pytest.mark.parametrize(
    ("status", "quoted"),
    [(400, KEY), (403, f"'{KEY}'"), (404, f"{KEY[:10]}****"), (418, KEY[8:18]), (500, f"****{KEY[-6:]}")],
)
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


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    """The texts of a run go to the server that the user names, and to no other."""
    with judge_server(_scores) as other:
        away = Response(status=307, headers={"Location": f"{other.url}/chat/completions"}, raw=b"over there")
        with (
            judge_server(lambda *_: away) as judge,
            pytest.raises(ConfigError, match=r"has no /chat/completions for the model 'm' \(307\): over there"),
        ):
            _client(judge, tmp_path).ask_all(_questions(1))
        assert other.requests == []


def test_a_malformed_reply_is_asked_for_again_with_a_reminder(tmp_path: Path) -> None:
    nothing = Response(raw=b'{"choices": [{"message": {"content": null}}]}')
    with judge_server(_first(nothing, Response("I would say 2 out of 3."))) as judge:
        client = _client(judge, tmp_path)
        assert client.ask_all(_questions(1)) == [(1,)]
        assert ["Attempt" in request.material for request in judge.requests] == [False, True, True]
        assert judge.requests[2].material.startswith("number 0\n\nAttempt 3: ")
        assert judge.requests[2].material.endswith("SCORE: <1 to 3>")
        assert (client.tally.asked_again, client.tally.malformed) == (2, 0)
        again = _client(judge, tmp_path)
        assert again.ask_all(_questions(1)) == [(1,)]
        assert (len(judge.requests), again.tally.cached) == (3, 3)


def test_what_stays_malformed_has_no_answer_and_is_counted(tmp_path: Path) -> None:
    def script(request: Request, before: int) -> Response:
        return Response("2") if request.material.startswith("number 1") else _scores(request, before)

    with judge_server(script) as judge:
        for requests in (5, 0):
            client = _client(judge, tmp_path)
            assert client.ask_all(_questions(3)) == [(1,), None, (3,)]
            assert (client.tally.asked_again, client.tally.malformed) == (2, 1)
            assert (client.tally.requests, client.tally.cached) == (requests, 5 - requests)
        assert len(judge.requests) == 5
    assert client.cost_line() == (
        "Judge m: 0 requests (0 tokens), 5 replies from the cache; 2 malformed replies were asked for again, "
        "1 questions stayed malformed."
    )


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


def test_what_is_under_way_when_it_ends_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused, refusal = threading.Event(), JudgeClient._refusal
    monkeypatch.setattr(JudgeClient, "_refusal", lambda client, error: refused.set() or refusal(client, error))

    def script(request: Request, before: int) -> Response:
        slow = request.material == "number 0"
        return Response("SCORE: 2", seconds=0.1, held=refused) if slow else Response(status=400)

    with judge_server(script) as judge:
        with pytest.raises(ConfigError, match="refuses"):
            _client(judge, tmp_path, concurrency=2).ask_all(_questions(9))
        assert len(judge.requests) == 2
        assert _client(judge, tmp_path).ask_all(_questions(1)) == [(2,)]
        assert len(judge.requests) == 2


def test_fields_of_the_request_are_replaced_added_and_left_out(tmp_path: Path) -> None:
    with judge_server(_scores) as judge:

        def body(**changes: Any) -> dict[str, Any]:
            _client(judge, tmp_path, **changes).ask_all(_questions(1))
            return judge.requests[-1].body

        turns = {"system": instructions(_questions(1)[0]), "user": "number 0"}
        messages = [{"role": role, "content": content} for role, content in turns.items()]
        plain = {"model": "m", "messages": messages, "temperature": 0, "max_tokens": 1024}
        assert body() == plain
        assert body(constrained=True) == {**plain, "structured_outputs": {"regex": "SCORE: (1|2|3)"}}
        changes = {"temperature": None, "max_tokens": None, "max_completion_tokens": 9}
        assert body(request=changes) == {"model": "m", "messages": messages, "max_completion_tokens": 9}


REQUEST = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": "é?"}]}


@pytest.mark.parametrize("reply", [Reply("half \ud83d\nSCORE: 2", 9), Reply("", None)])
def test_a_reply_comes_back_to_its_own_request_only(tmp_path: Path, reply: Reply) -> None:
    cache = ReplyCache(tmp_path)
    cache.write(REQUEST, reply)
    assert ReplyCache(tmp_path).read(dict(reversed(REQUEST.items()))) == reply
    for change in ({"model": "n"}, {"temperature": 1}, {"seed": 0}, {"messages": []}):
        assert cache.read({**REQUEST, **change}) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"2",
        b"[" * 9_999,
        b"\xff",
        *(b'{"text": %s}' % rest for rest in (b'"x"', b'2, "tokens": 1', b'"2", "tokens": "x"')),
    ],
)
def test_a_file_that_is_no_reply_is_named(tmp_path: Path, content: bytes) -> None:
    cache = ReplyCache(tmp_path)
    cache.write(REQUEST, Reply("x", 1))
    cache.path(REQUEST).write_bytes(content)
    with pytest.raises(ConfigError, match=r"is not the reply of a judge\. Delete that file") as refused:
        cache.read(REQUEST)
    assert str(cache.path(REQUEST)) in str(refused.value)


def test_a_reply_that_never_ends_is_given_up_in_time(tmp_path: Path) -> None:
    """A byte every tenth of a second: no single read is late."""
    ended = threading.Event()

    class Drip(JsonHandler):
        def do_POST(self) -> None:
            self.body()
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            with suppress(OSError):
                while not ended.wait(0.1):
                    self.wfile.write(b" ")

    with serving(Drip) as address:
        client = JudgeClient(JudgeSettings(model="m", url=f"{address}/v1", cache=tmp_path, timeout=1.0, tries=1))
        with pytest.raises(ConfigError, match=r"failed 1 times, the last time with: .*no whole reply within 1 s"):
            client.ask_all(_questions(1))
        ended.set()
