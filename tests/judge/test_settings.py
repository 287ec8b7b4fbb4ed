"""Settings that cannot work are refused, and keys come from the environment alone."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.judge.settings import JudgeSettings, add_judge_options, judge_settings

LOCAL = "http://localhost:8000/v1"


def _settings(**changes: Any) -> JudgeSettings:
    return JudgeSettings(**{"model": "m", "cache": Path("cache"), **changes})


@pytest.mark.parametrize(
    "url",
    ["localhost:8000", "ftp://host", "http://host:port", "http://[host", "https://user:sesame@host/v1",
     "https://host/v1?key=sesame"],
)  # fmt: skip
def test_what_is_no_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match=r"--judge-url: must be an address such as .* Pass keys in the") as refused:
        _settings(url=url)
    assert "sesame" not in str(refused.value)


def test_the_question_cannot_be_replaced() -> None:
    with pytest.raises(ConfigError, match="--judge-request=messages: is part of the question"):
        _settings(request={"messages": []})


def test_credentials_are_not_fields_of_the_request() -> None:
    for request in ({"user_token": "x"}, {"extra": {"auth": "Bearer sesame0"}}, {"user": f"sk-{'sesame1' * 4}"}):
        with pytest.raises(ConfigError, match="is a credential, which the cache of replies would hold") as refused:
            _settings(request=request)
        assert "sesame" not in str(refused.value)
    _settings(request={"max_tokens": 5, "reasoning_effort": "low"})


def test_a_local_server_needs_no_key_and_a_provider_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _settings(url=f"{LOCAL}/").base_url == LOCAL
    assert _settings(url=LOCAL).read_key() is None
    with pytest.raises(ConfigError, match="=OPENAI_API_KEY: is not set"):
        _settings().read_key()
    with pytest.raises(ConfigError, match="=OTHER_KEY: is not set"):
        _settings(url=LOCAL, key_variable="OTHER_KEY").read_key()
    monkeypatch.setenv("OPENAI_API_KEY", "one")
    monkeypatch.setenv("OTHER_KEY", "other")
    assert _settings(url=LOCAL).read_key() == "one"
    assert _settings(key_variable="OTHER_KEY").read_key() == "other"


@pytest.mark.parametrize("key", ["se same", "sesame\n", "sésame"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_repeated(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ConfigError, match="has spaces or other characters that are not valid in a key") as refused:
        _settings().read_key()
    assert "same" not in str(refused.value).replace("OPENAI_API_KEY", "")


def test_the_command_line_makes_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_judge_options(parser)
    line = "--judge-model m --judge-url http://h/v1 --judge-key-variable K --cache c "
    line += "--judge-reply-tokens 5 --judge-attempts 2 --judge-tries 4 --judge-timeout 1.5 --judge-concurrency 3 "
    line += "--budget-requests 6"
    arguments = vars(parser.parse_args([*line.split(), "--judge-request", '{"temperature": null}']))
    assert judge_settings(arguments) == JudgeSettings(
        model="m", url="http://h/v1", key_variable="K", cache=Path("c"), reply_tokens=5,
        attempts=2, tries=4, timeout=1.5, concurrency=3, most_requests=6,
        request={"temperature": None},
    )  # fmt: skip
    defaults = judge_settings(vars(parser.parse_args(["--judge-model", "m"])))
    assert defaults == JudgeSettings(model="m", cache=Path("judge-cache"))
    with pytest.raises(ConfigError, match="--judge-model: must be given"):
        judge_settings({"judge_tries": 3})
    for option, text in (("--judge-request", "temperature=0"), ("--judge-request", "[1]"), ("--judge-attempts", "0")):
        with pytest.raises(SystemExit):
            parser.parse_args(["--judge-model", "m", option, text])
        assert f"argument {option}: " in capsys.readouterr().err
