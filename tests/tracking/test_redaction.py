"""No secret of a configuration is shown."""

import pytest

from meds_openrlhf.tracking.redaction import redacted, without_keys


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("api_key", "x"),
        ("password", "hunter2"),
        ("hub_token", "abc"),
        ("remote_url", "http://user:secret@judge:8000/score"),
        ("remote_url", "https://token@judge/score"),
        ("archive", "s3://id:sec/ret@bucket/runs"),
        ("remote_url", "http://judge/score?a=1&token=abc&b=2"),
        ("remote_url", "http://judge/score?accessToken=abc"),
        ("remote_url", "http://judge/score?sv=1;sig=abc%3D"),
        ("remote_url", "http://judge/score?X-Amz-Signature=abc"),
        ("remote_url", "http://judge/score?PASSWORD=abc"),
        ("remote_url", "http://judge/score#access_token=abc"),
        ("note", "hf_abcdefghijklmnopqrst"),
        ("note", "sk-abcdefghijklmnop1234"),
        ("wandb_key", "0123456789abcdef0123456789abcdef01234567"),
        ("auth", "3f2504e0-4f89-11d3-9a0c-0305e82c3301"),
        ("label_key", "Zx81kq02mVbT77aPqwLm"),
        ("note", "see s3cr3t-of-this-machine here"),
        ("note", "log in as me:p4ss-of-mine"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(name: str, value: str) -> None:
    environment = {"SOME_TOKEN": "s3cr3t-of-this-machine", "SOME_URL": "https://me:p4ss-of-mine@host/x"}
    content = {"section": {name: value, "list": [{name: value}]}}
    assert redacted(content, environment) == {"section": {name: "***", "list": [{name: "***"}]}}


def test_settings_that_only_sound_like_it_are_shown() -> None:
    content = {
        "data": {"input_key": "problem", "label_key": "answer", "max_len": 2048},
        "rollout": {"max_new_tokens": 3000, "temperature": 1.0},
        "eval": {"best_metric_key": "eval_aime24_pass1"},
        "meds": {"memory": {"archive": "s3://bucket/runs/my-run"}},
        "reward": {"remote_url": "http://judge:8000/score?design=7&max_tokens=5&key=", "mail": "http://judge:80/a@b"},
        "actor": {"model_name_or_path": "Qwen/Qwen2.5-Math-7B"},
        "critic": {"model_name_or_path": f"/cache/models--Qwen--Qwen3-1.7B/snapshots/{'0123456789abcdef' * 2}01234567"},
        "reward_data": {"label_key": None, "id_key": "unique-question-id-2", "input_key": "problem-statement-of-2025"},
    }
    assert redacted(content, {"HOME": "/root", "SHORT_KEY": "Qwen"}) == content


def test_white_space_ends_an_address_in_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from s3://KEY:sec/r@et@bucket/a to https://token-of-mine@host/"
    monkeypatch.setenv("ANY", text)
    assert without_keys(text) == "from s3://***@bucket/a to https://***@host/"
    assert redacted({"where": text}, {}) == {"where": "***"}
    harmless = {"where": "see http://host:80/a and write to me@host"}
    assert redacted(harmless, {"ANY": harmless["where"]}) == harmless
