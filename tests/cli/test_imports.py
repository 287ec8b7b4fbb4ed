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
for line in sys.stdin:
    try:
        code = main(line.split())
    except SystemExit as exit:
        code = exit.code
    print("code", code)
print(*sorted(name for name in sys.modules if "." not in name))
"""


def imported_by(commands: list[list[str]], cwd: Path) -> tuple[list[int], set[str]]:
    """The exit codes of `meds` with each of ``commands``, and the packages that one process has imported for all."""
    lines = "".join(" ".join(words) + "\n" for words in commands)
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=lines, cwd=cwd, capture_output=True, text=True, timeout=100
    )
    assert finished.returncode == 0, finished.stderr
    *printed, modules = finished.stdout.splitlines()
    return [int(line.split()[1]) for line in printed if line.startswith("code ")], set(modules.split())


def test_help_needs_the_standard_library_alone(tmp_path: Path) -> None:
    commands = ["train", "eval", "plan", "demo", "data", "memory", "report", "track", "data prepare"]
    codes, modules = imported_by([[*command.split(), "--help"] for command in ("", *commands)], tmp_path)
    assert set(codes) == {0}
    assert modules & {*HEAVY, "numpy", "pyarrow", "ray"} == set()


@pytest.mark.needs("wrapt")
def test_a_plan_and_refusals_import_no_model_code(tmp_path: Path) -> None:
    policy = tmp_path / "policy"
    policy.mkdir()
    sizes = '"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 2'
    rest = '"num_key_value_heads": 2, "vocab_size": 100, "tie_word_embeddings": false'
    rest += ', "architectures": ["Qwen2ForCausalLM"]'
    (policy / "config.json").write_text(f'{{"model_type": "qwen2", {sizes}, {rest}}}')
    (tmp_path / "train.jsonl").write_text('{"id": "1", "prompt": "1 + 1", "answer": "2"}\n' * 64)
    config = str(REPOSITORY / "configs/cpu/meds.yaml")
    files = [f"--actor.model_name_or_path={policy}", "--data.prompt_dataset=train.jsonl", "--meds.run_dir=run"]
    refused = [
        "--train.num_episode=3",
        "--rollout.n_samples_per_prompt=1",
        "--data.label_key=solution",
        "--meds.features.layers=9",
        "--actor.model_name_or_path=.",
    ]
    plan = ["plan", config, *files, "--cluster=1x8"]
    codes, modules = imported_by([plan, *(["train", config, *files, word] for word in refused)], tmp_path)
    assert codes == [0, 2, 2, 2, 2, 2]
    assert modules & HEAVY == set()
