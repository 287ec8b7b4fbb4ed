"""Replies are kept by the whole request, whole or not at all."""

from pathlib import Path

import pytest
from meds_openrlhf.judge.cache import Reply, ReplyCache

from meds_openrlhf.config.errors import ConfigError

BODY = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": "é?"}]}


@pytest.mark.parametrize("reply", [Reply("SCORE: 2\n", 9), Reply("half \ud83d\nSCORE: 2", 9), Reply("", None)])
def test_a_reply_comes_back_to_its_own_request_only(tmp_path: Path, reply: Reply) -> None:
    cache = ReplyCache(tmp_path)
    cache.write(BODY, reply)
    assert ReplyCache(tmp_path).read(dict(reversed(BODY.items()))) == reply
    for change in ({"model": "n"}, {"temperature": 1}, {"seed": 0}, {"messages": []}):
        assert cache.read({**BODY, **change}) is None


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
