"""A judge behind vLLM's own server: the scripts ask it as they would ask any other, and count what it cannot say.

The model is random and knows nothing, so that its replies are malformed; held to the form, they count.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis import new_paths
from meds_openrlhf.runtime.devices import CPU_ENVIRONMENT
from tests.analysis.runs import Rollout, kind, write_log, write_run
from tests.e2e.conftest import REPOSITORY, environment
from tests.processes import answers, free_ports, running

pytestmark = pytest.mark.slow

CONTEXT_LENGTH = 8192  # a token is a character
CHAT_TEMPLATE = (
    "{% for turn in messages %}<|im_start|>{{ turn['role'] }}\n{{ turn['content'] }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)


def _write_model(folder: Path) -> None:
    """A random model of two narrow layers, one token a character."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from meds_openrlhf.arithmetic.tiny_policy import build_char_tokenizer

    tokenizer = build_char_tokenizer(CONTEXT_LENGTH)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=CONTEXT_LENGTH, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def judge_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of vLLM's server of that model, on this machine's CPU."""
    folder = tmp_path_factory.mktemp("judge")
    _write_model(folder / "model")
    (folder / "template.jinja").write_text(CHAT_TEMPLATE)
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder / "model")]
    command += ["--served-model-name", "random-judge", "--chat-template", str(folder / "template.jinja")]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--dtype", "bfloat16"]
    command += ["--max-model-len", str(CONTEXT_LENGTH), "--max-num-seqs", "8"]
    address = f"http://127.0.0.1:{port}"
    with running(command, folder / "log", lambda: answers(f"{address}/health"), environment(**CPU_ENVIRONMENT)):
        yield f"{address}/v1"


def _run_script(script: str, runs: list[Path], url: str, folder: Path, *more: str) -> tuple[dict, str]:
    """The numbers and the table of a script, run as a user would."""
    command = [sys.executable, "-m", f"analysis.{script}", *map(str, runs), "--judge-url", url]
    command += ["--judge-model", "random-judge", "--judge-reply-tokens", "40", "--cache", str(folder / "cache")]
    command += ["--figure", str(folder / "figure.svg"), "--json", str(folder / "numbers.json"), *more]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200)
    print(finished.stdout, finished.stderr)  # shown when the test fails
    assert finished.returncode == 0
    return json.loads((folder / "numbers.json").read_text()), finished.stdout


def test_a_model_behind_vllms_server_judges(judge_url: str, tmp_path: Path) -> None:
    prompts = {f"p{number}": [f"{number} + {i} = {number + i}" for i in range(3)] for number in range(4)}
    runs = [write_log(tmp_path / name, {30: prompts, 40: prompts}) for name in ("meds", "dapo")]

    numbers, printed = _run_script("step_diversity", runs, judge_url, tmp_path, "--judge-attempts", "2")
    assert (numbers["all"]["judged"], numbers["all"]["malformed"]) == (0, 8)
    assert numbers["all"]["means"] is None
    assert "16 requests" in printed
    assert "8 questions stayed malformed" in printed

    numbers, printed = _run_script("step_diversity", runs, judge_url, tmp_path, "--judge-constrained")
    assert (numbers["all"]["judged"], numbers["all"]["malformed"]) == (8, 0)
    assert all(1 <= mean <= 5 for mean in numbers["all"]["means"])
    assert "8 requests" in printed

    again, printed = _run_script("step_diversity", runs, judge_url, tmp_path, "--judge-constrained")
    assert again == numbers
    assert "0 requests (0 tokens), 8 replies from the cache" in printed

    numbers, _ = _run_script("new_paths", runs, judge_url, tmp_path, "--judge-constrained")
    assert [(run["judged"], run["malformed"], sum(run["counts"])) for run in numbers["runs"]] == [(4, 0, 4)] * 2

    wrong = write_run(tmp_path / "wrong", [[Rollout("p", "3", logits=kind(i % 2, 0.05, i)) for i in range(6)]] * 2)
    numbers, _ = _run_script("error_categories", [wrong], judge_url, tmp_path, "--judge-constrained")
    assert (sum(numbers["categories"].values()), numbers["malformed"], numbers["pairs"]) == (12, 0, 66)


def test_a_model_that_the_server_does_not_have_is_one_line(
    judge_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(write_log(tmp_path / name, {20: {"p": ["a", "b"]}, 40: {"p": ["a", "b"]}})) for name in ("one", "two")]
    line = ["--pairs=1", "--groups=1", "--judge-url", judge_url, "--judge-model", "another", "--cache", str(tmp_path)]
    assert new_paths.main([*runs, *line]) == 2
    error = capsys.readouterr().err
    assert "has no /chat/completions for the model 'another' (404): The model `another` does not exist." in error
    assert error.count("\n") == 1
