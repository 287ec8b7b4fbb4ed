"""A model's own code runs where the user says so: one rule for plan, train, eval and atlas, without a question."""

import json
import sys
from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.files import MOST_TEXT
from meds_openrlhf.runtime.hub import require_trusted
from tests.cli.conftest import Meds

pytestmark = pytest.mark.needs("transformers")

CONFIG = str(Path(__file__).parents[2] / "configs/cpu/meds.yaml")
SIZES = {"num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "vocab_size": 16}
CODE = """
from pathlib import Path
from transformers import PretrainedConfig
Path({mark!r}).touch()
class OwnConfig(PretrainedConfig):
    model_type = "own"
"""
AUTO_MAP = {"auto_map": {"AutoConfig": "own.OwnConfig"}}


def make_model(folder: Path, mark: Path, file: str = "config.json") -> Path:
    """A model whose configuration is code of its own, named in one of its files."""
    folder.mkdir()
    (folder / "own.py").write_text(CODE.format(mark=str(mark)))
    (folder / "config.json").write_text(json.dumps({"model_type": "own", **SIZES}))
    named = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps({**named, **AUTO_MAP}))
    return folder


@pytest.fixture
def no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def readline(self, *_: object) -> str:
            raise AssertionError("asked on stdin")

        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on stdin"))


@pytest.mark.usefixtures("no_question")
@pytest.mark.parametrize(
    "file", ["config.json", "tokenizer_config.json", "preprocessor_config.json", "video_preprocessor_config.json"]
)
def test_a_model_with_code_of_its_own_is_refused_alike(meds: Meds, tmp_path: Path, file: str) -> None:
    mark = tmp_path / "mark"
    model = make_model(tmp_path / "model", mark, file)
    (tmp_path / "data.jsonl").write_text('{"id": "a", "prompt": "p", "answer": "1"}\n')
    (tmp_path / "dump.jsonl").write_text('{"prompt": "p", "response": "\\\\boxed{1}", "reward": 0}\n')
    flags = ["--actor.model_name_or_path", model, "--data.prompt_dataset", tmp_path / "data.jsonl"]
    setting = f"={model}: has Python code of its own ({file}), which would run as you. If you trust it, "
    for command in (["plan", CONFIG, "--cluster", "1x2", *flags], ["train", CONFIG, "--meds.run_dir", "run", *flags]):
        code, _, trouble = meds(*command)
        assert code == 2
        assert trouble.splitlines()[-1] == (
            f"meds: actor.model_name_or_path{setting}set meds.trust_remote_code to true."
        )
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "config.json").write_text(json.dumps({"model_type": "qwen2", **SIZES}))
    of_critic = ["--actor.model_name_or_path", plain, "--critic.model_name_or_path", model]
    of_critic += ["--algo.advantage.estimator", "gae", "--meds.policy.minibatches", "responses"]
    assert meds.refusal("plan", CONFIG, "--cluster", "1x3", *of_critic).startswith(f"critic.model_name_or_path={model}")
    benchmark = ["--benchmarks", tmp_path / "data.jsonl", "--allow-cpu"]
    assert meds.refusal("eval", model, *benchmark) == f"MODEL{setting}add --trust-remote-code."
    atlas = ["atlas", tmp_path / "dump.jsonl", "--model", model, "--out", "atlas"]
    assert meds.refusal(*atlas) == f"--model{setting}add --trust-remote-code."
    assert not mark.exists()


@pytest.mark.usefixtures("no_question")
def test_it_runs_if_the_user_trusts_it(meds: Meds, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    model = make_model(tmp_path / "model", mark)
    meds("plan", CONFIG, "--cluster", "1x2", "--actor.model_name_or_path", model, "--meds.trust_remote_code", "true")
    assert mark.exists()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", '{"text_config": {"auto_map": {"AutoConfig": "own.OwnConfig"}}}'),
        ("config.json", '{"\\u0061uto_map": {"AutoConfig": "own.OwnConfig"}}'),
        ("config.json", '{"auto_map": {"AutoConfig": "own.OwnConfig"}, "n": ' + "9" * 400 + "}"),
        ("config.json", '{"auto_map": {'),
        ("custom_generate/generate.py", "def generate(*_, **__): ..."),
        ("adapter_config.json", '{"base_model_name_or_path": "other"}'),
        ("adapter_config.json", '{"base_model_name_or_path": "other"}' + " " * MOST_TEXT),
    ],
)
def test_code_is_found_wherever_a_model_may_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, content: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make_model(Path("other"), tmp_path / "mark")
    for name, text in {"config.json": json.dumps({"model_type": "qwen2", **SIZES}), file: content}.items():
        (tmp_path / "model" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "model" / name).write_text(text)
    with pytest.raises(ConfigError, match="has Python code of its own"):
        require_trusted("model", "MODEL", trusted=False)
    require_trusted("model", "MODEL", trusted=True)


def test_what_has_no_code_passes_and_what_is_nowhere_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    tokens = {"model": {"vocab": {"auto_map": 7, "\u0101": 8}}}
    for name, content in {"config.json": {"auto_map": {}}, "tokenizer.json": tokens}.items():
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "."}))
    require_trusted(".", "MODEL", trusted=False, must_find=True)
    require_trusted("some/model", "MODEL", trusted=False)
    with pytest.raises(ConfigError, match="MODEL=some/model: is neither a folder nor in the hub's cache"):
        require_trusted("some/model", "MODEL", trusted=False, must_find=True)
