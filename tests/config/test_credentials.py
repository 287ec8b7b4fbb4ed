"""No secret of a configuration is shown."""

from pathlib import Path

import pytest
import yaml

from meds_openrlhf.config import ConfigError, load_config
from meds_openrlhf.config.credentials import credentials_in, hidden, is_secret_variable, redacted, without_keys

LETTERS = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6"
PREFIXES = (
    *("fw_", "dckr_pat_", "sk_test_", "bearer ", "GOCSPX-", "sk-ant-api03-", "hf_", "ghp_", "gho_", "github_pat_"),
    *("npm_", "r8_", "gsk_", "wandb_v1_", "sk_live_", "sk-", "sk-proj-"),
)
FORMS = [
    *[f"{prefix}{LETTERS}" for prefix in (*PREFIXES, "glpat-", "nvapi-", "pypi-", "xoxb-", "xapp-1-", "AIza", "ya29.")],
    *(f"dapi{'0123456789abcdef' * 2}", "AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE", f"hvs.{LETTERS}", "Bearer a.b"),
    *(f"eyJ{LETTERS}.{LETTERS}.{LETTERS}", f"SG.{LETTERS}.{LETTERS}", f"Bearer {LETTERS}"),
    f"-----BEGIN RSA PRIVATE KEY-----\n{LETTERS}\n-----END RSA PRIVATE KEY-----",
    *("https://hooks.slack.com/services/T0/B0/x1", "https://discord.com/api/webhooks/1/x1"),
    *(
        "http://me:hunter2@host/x",
        "s3://id:sec/ret@bucket/runs",
        "https://token@host",
        "http://host/?code=hunter2hunter2",
    ),
    *("http://host/score?a=1&token=hunter2", "http://host#access_token=hunter2", "http://host?X-Amz-Signature=hunter2"),
]
HARMLESS = [
    *("http://judge:8000/score?design=7&max_tokens=5&key=", "http://judge:80/a@b", "Qwen/Qwen2.5-Math-7B", "x@y"),
    *("mask-based-training-of-language-models", "the bearer of news", "?key", "hf_home", "a basic test", "sk-learn"),
    *("Use only Basic arithmetic. {}", "/data/sk-instruct-math-2024/train.jsonl", "/ckpt/hf_qwen2_5_math_7b_step_1000"),
    *("/runs/gsk_ablation_layer14_seed7", "git+ssh://git@github.com/a/b", "http://host/get_reward?code=python"),
    *("eyJ", "/cache/a_key", f"/cache/models--Qwen--Qwen3-1.7B/snapshots/{'0123456789abcdef' * 2}01234567"),
]
GROWING = ("?key", "://a", "://a:", "hf_", "eyJ.", "-----BEGIN PRIVATE KEY", "Bearer ", "&a=1", "sk-")


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


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form[:16])
def test_a_credential_is_known_by_its_form_wherever_it_stands(form: str, tmp_path: Path) -> None:
    for text in (form, f"see {form} here", f"a='{form}'"):
        assert LETTERS not in hidden(text)
        assert "hunter2" not in hidden(text)
        assert "***" in hidden(text)
        assert redacted({"note": text, text: None}, {}) == {"note": "***", "***": None}
    for settings in ({"a": {"b": form}}, {"a": {"b": ["x", {"c": form}]}}, {"a": [form]}, {f"a {form}": 1}):
        (name,) = credentials_in(settings)
        assert form not in name
        (tmp_path / "c.yaml").write_text(yaml.safe_dump({"meds": {"run_dir": "x"}, **settings}))
        with pytest.raises(ConfigError, match="credentials are read from the environment") as raised:
            load_config(tmp_path / "c.yaml")
        assert form not in str(raised.value)
    assert form not in str(ConfigError("actor.model_name_or_path", form, f"cannot be loaded ({form})."))


def test_credentials_are_known_by_their_name() -> None:
    names = "api_key key password hub_token pwd db_pass session_cookie slack_webhook api-key"
    for name in names.split():
        assert credentials_in({"section": {name: "x"}}) == [f"section.{name}"]
        assert redacted({"section": {name: 12345678}}, {}) == {"section": {name: "***"}}
        assert credentials_in({"section": {name: None}}) == credentials_in({"section": {name: ""}}) == []


def test_variables_with_a_key_are_told_from_others() -> None:
    for name in ("WANDB_API_KEY", "HF_TOKEN", "DB_PASS", "MYSQL_PWD", "WANDB_KEY2", "X_CREDENTIALS", "APIKEY"):
        assert is_secret_variable(name), name
    for name in ("PWD", "OLDPWD", "MAX_TOKENS", "RAY_AUTH_MODE", "SSH_AUTH_SOCK", "RAY_AUTH_TOKEN_PATH", "KEYMAP"):
        assert not is_secret_variable(name), name
    assert not is_secret_variable("TOKENIZERS_PARALLELISM")


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_resembles_a_credential_is_shown(text: str) -> None:
    assert hidden(text) == text
    assert credentials_in({"data": {"input_key": text, "max_len": 2048, "label_key": "questionWithText2"}}) == []


@pytest.mark.parametrize("part", GROWING)
def test_no_text_takes_time_that_grows_with_its_square(part: str) -> None:
    """With a square, this would take hours."""
    assert redacted({"note": part * (2_000_000 // len(part))}, {}).keys() == {"note"}
