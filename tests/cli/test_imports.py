"""Commands answer at once: what a command imports before its first word, and before it refuses what is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.base_installation import REPOSITORY

HEAVY = {"torch", "transformers", "deepspeed", "vllm", "sklearn", "hdbscan"}
PROGRAM = """
import sys
from meds_openrlhf.cli.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as exit:
    code = exit.code
print("code", code, *sorted(name for name in sys.modules if "." not in name))
"""


def imported_by(*words: str, cwd: Path) -> tuple[int, set[str]]:
    """The exit code of `meds` and the packages that it has imported."""
    command = [sys.executable, "-c", PROGRAM, *words]
    finished = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=100)
    assert finished.returncode == 0, finished.stderr
    _, code, *modules = finished.stdout.splitlines()[-1].split()
    return int(code), set(modules)


@pytest.mark.parametrize(
    "command", ["", "train", "eval", "plan", "submit", "demo", "data", "memory", "report", "track", "data prepare"]
)
def test_help_needs_the_standard_library_alone(command: str, tmp_path: Path) -> None:
    code, modules = imported_by(*command.split(), "--help", cwd=tmp_path)
    assert code == 0
    assert modules & {*HEAVY, "numpy", "pyarrow", "ray"} == set()


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    folder = tmp_path / "policy"
    folder.mkdir()
    sizes = '"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 2'
    rest = '"num_key_value_heads": 2, "vocab_size": 100, "tie_word_embeddings": false'
    (folder / "config.json").write_text(f'{{"model_type": "qwen2", {sizes}, {rest}}}')
    (tmp_path / "train.jsonl").write_text('{"id": "1", "prompt": "1 + 1", "answer": "2"}\n' * 64)
    return folder


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["plan", "--cluster=1x8"], 0),
        (["train", "--train.num_episode=3"], 2),
        (["train", "--rollout.n_samples_per_prompt=1"], 2),
        (["train", "--data.label_key=solution"], 2),
        (["train", "--meds.features.layers=9"], 2),
        (["train", "--actor.model_name_or_path=."], 2),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_plan_and_refusals_import_no_model_code(policy: Path, tmp_path: Path, words: list[str], code: int) -> None:
    files = [f"--actor.model_name_or_path={policy}", "--data.prompt_dataset=train.jsonl", "--meds.run_dir=run"]
    command = [words[0], str(REPOSITORY / "configs/cpu/meds.yaml"), *files, *words[1:]]
    found, modules = imported_by(*command, cwd=tmp_path)
    assert found == code
    assert modules & HEAVY == set()
