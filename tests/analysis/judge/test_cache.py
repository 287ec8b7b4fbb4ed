"""Replies are kept by the whole request, whole or not at all."""

import threading
from pathlib import Path

import pytest

from analysis.judge.cache import Reply, ReplyCache
from meds_openrlhf.config.errors import ConfigError

BODY = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": "é?"}]}


def test_a_reply_comes_back_to_its_own_request_only(tmp_path: Path) -> None:
    cache = ReplyCache(tmp_path)
    cache.write(BODY, Reply("SCORE: 2\n", 9))
    assert ReplyCache(tmp_path).read(dict(reversed(BODY.items()))) == Reply("SCORE: 2\n", 9)
    for change in ({"model": "n"}, {"temperature": 1}, {"seed": 0}, {"messages": []}):
        assert cache.read({**BODY, **change}) is None


def test_a_reply_without_a_count_of_tokens(tmp_path: Path) -> None:
    cache = ReplyCache(tmp_path)
    cache.write(BODY, Reply("", None))
    assert cache.read(BODY) == Reply("", None)


def test_half_a_character_in_a_reply_is_kept(tmp_path: Path) -> None:
    cache = ReplyCache(tmp_path)
    cache.write(BODY, Reply("half \ud83d\nSCORE: 2", 9))
    assert cache.read(BODY) == Reply("half \ud83d\nSCORE: 2", 9)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(100_000 * "[", id="nested too deeply"),
        "",
        "{",
        "[]",
        '{"text": 3, "tokens": 1}',
        '{"text": "x", "tokens": "1"}',
        "\xff",
    ],
)
def test_a_file_that_is_no_reply_is_named(tmp_path: Path, content: str) -> None:
    cache = ReplyCache(tmp_path)
    cache.write(BODY, Reply("x", 1))
    path = cache.path(BODY)
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"is not the reply of a judge\. Delete that file") as refused:
        cache.read(BODY)
    assert str(path) in str(refused.value)


def test_readers_never_see_a_part_of_a_reply(tmp_path: Path) -> None:
    cache, text = ReplyCache(tmp_path), "x" * 100_000
    stop = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not stop.is_set():
            reply = cache.read(BODY)
            seen.append(-1 if reply is None else len(reply.text))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(30):
        cache.write(BODY, Reply(text, 1))
    stop.set()
    reader.join()
    assert set(seen) <= {-1, 100_000}
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [cache.path(BODY).name]
