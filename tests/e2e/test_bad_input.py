"""What a user gets wrong: one line that names the field, the value and the mend, exit code 2, nothing left behind."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from meds_openrlhf.cli.main import main
from meds_openrlhf.memory.snapshot import MemoryFormat, write_format
from meds_openrlhf.paths import RunPaths
from tests.e2e.conftest import MEDS, command, finished


@pytest.fixture
def refusal(assets: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one line that `meds train` prints about a run that it refuses. In this process: imports take their time."""

    def refused(run_dir: Path, *overrides: str) -> str:
        assert main(command(assets, run_dir, *overrides)[len(MEDS) :]) == 2
        return only_line(capfd.readouterr().err)

    return refused


def only_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.startswith("meds: ") or "Traceback" in line]
    assert len(lines) == 1, text
    return lines[0].removeprefix("meds: ")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("--actor.model_name_or_path=/no/such/model", "actor.model_name_or_path=/no/such/model: does not exist"),
        ("--data.prompt_dataset=no-such.jsonl", "data.prompt_dataset=no-such.jsonl: does not exist"),
        ("--data.label_key=solution", "data.label_key=solution: the data set has no such column; it has id, prompt, "),
        ("--data.input_key=question", "data.input_key=question: the data set has no such column; it has id, prompt, "),
        ("--vllm.num_engines=16", "cluster: has no room for 1 GPU for policy, 16 GPUs for engines"),
        ("--meds.features.layers=9", "meds.features.layers=9: "),
        ("--meds.allow_cpu=false", "meds.allow_cpu=False: this machine has no GPU"),
        ("--rollout.n_samples_per_prompt=1", "OpenRLHF refuses these settings: group_norm requires"),
        ("--ds.deepcompile", "ds.deepcompile=True: compiled code runs no hooks"),
        ("--ckpt.path=elsewhere", "ckpt.path=elsewhere: follows from meds.run_dir"),
        ("--train.num_episode=3", "train.num_episode=3: unknown setting. Did you mean train.num_episodes?"),
        ("--ds.lora.rank=4 --ds.lora.target_modules=query", "ds.lora.target_modules=query: names no linear layer; "),
    ],
)
def test_refused_before_anything_starts(
    refusal: Callable[..., str], tmp_path: Path, overrides: str, message: str
) -> None:
    run_dir = tmp_path / "run"
    assert refusal(run_dir, *overrides.split()).startswith(message)
    assert not run_dir.exists()


def test_a_model_folder_without_a_model(refusal: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    line = refusal(tmp_path / "run", f"--actor.model_name_or_path={tmp_path}/empty")
    assert line.startswith(f"actor.model_name_or_path={tmp_path}/empty: cannot be loaded (")


def test_a_memory_of_another_model(refusal: Callable[..., str], tmp_path: Path) -> None:
    other = MemoryFormat(shards=2, layers=28, model={"architecture": "LlamaForCausalLM", "layers": 28})
    write_format(RunPaths(tmp_path).memory, other)
    line = refusal(tmp_path, "--resume")
    assert line.startswith(f"meds.run_dir={tmp_path}/memory: holds the memory of another model or feature")
    assert re.search("LlamaForCausalLM.* not of architecture Qwen2ForCausalLM, layers 4", line)
    assert json.loads(RunPaths(tmp_path).memory.format.read_text())["layers"] == 28


def test_a_folder_that_holds_a_run_already(assets: Path, tmp_path: Path) -> None:
    """As a user sees it: nothing else is printed."""
    (tmp_path / "config.yaml").write_text("meds: {}\n")
    ended = finished(command(assets, tmp_path))
    assert ended.returncode == 2
    assert len(ended.stderr.strip().splitlines()) == 1
    assert "Add --resume to continue it" in only_line(ended.stderr)
    assert (tmp_path / "config.yaml").read_text() == "meds: {}\n"
