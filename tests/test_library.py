"""The package as other trainers use it: the page's own code, without OpenRLHF, Ray or a GPU."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meds_openrlhf
from meds_openrlhf.shaping.law import normalized

REPOSITORY = Path(meds_openrlhf.__file__).parents[1]
PROGRAM = """
import sys
for name in ("openrlhf", "ray", "deepspeed", "vllm"):
    sys.modules[name] = None  # cannot be imported
import torch
from transformers import AutoModelForCausalLM, Qwen2Config
from meds_openrlhf.arithmetic.tiny_policy import build_char_tokenizer
assert not torch.cuda.is_available()
tokenizer = build_char_tokenizer()
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(Qwen2Config(
    vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=6, num_attention_heads=2,
    num_key_value_heads=2))
{example}
prompt = "2+3="
responses = [*["\\\\boxed{{7}}"] * 3, "\\\\boxed{{8}}", "\\\\boxed{{5}}", "no box"]
width = max(len(prompt + text) for text in responses)
rows = [tokenizer.encode(prompt + text, add_special_tokens=False) for text in responses]
ids = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows])
own = torch.tensor([[len(prompt) <= t < len(row) for t in range(width)] for row in rows])
for step in (1, 2, 3):
    shaped = shape_rewards(step, ids, own, [prompt] * 6, [0, 0, 0, 0, 1, 0])
    print(*(f"{{reward:.4f}}" for reward in shaped))
print(memory.stats().rows)
{law}
for step, rewards in ((4, [0, 0, 0, 0, 1, 0]), (5, [0] * 6)):
    print(*(f"{{value:.4f}}" for value in shape_advantages(step, ids, own, [prompt] * 6, rewards, group=6)))
"""


@pytest.mark.needs("torch")
def test_the_example_shapes_the_rewards_of_repeated_mistakes(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "library.md").read_text()
    example, law = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:2]
    program = PROGRAM.format(example=example, law=law)
    command = [sys.executable, "-c", program]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    first, _, third, stored, fourth, fifth = finished.stdout.splitlines()
    assert first == "0.0000 0.0000 0.0000 0.0000 1.0000 0.0000"
    assert third == "-0.1946 -0.1946 -0.1946 -0.1099 1.0000 0.0000"  # 0.1 ln 7 for six before, 0.1 ln 3 for two
    assert stored == "12"
    assert fourth == "-0.5128 -0.5128 -0.5128 -0.3836 2.0138 -0.0917"  # of -0.2 thrice, -0.1386, 1 and 0
    assert fifth == "-0.5968 -0.5968 -0.5968 -0.0939 -0.0939 0.0000"  # of -0.2 thrice and -0.1609 twice; 0 would gain


def test_the_example_without_errors_weights_groups_by_what_was_solved_before() -> None:
    page = (REPOSITORY / "docs" / "library.md").read_text()
    (block,) = [one for one in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "focal_weights" in one]
    names: dict[str, Any] = {"np": np}
    exec(block, names)
    prompts, rewards = ["a"] * 4 + ["b"] * 4, [1, 1, 1, 0, 1, 0, 0, 0]
    first, second = (names["focal_advantages"](prompts, rewards, group=4) for _ in range(2))
    np.testing.assert_array_equal(first, normalized(np.reshape(rewards, (2, 4))).reshape(-1))
    np.testing.assert_allclose(second, first * np.repeat([0.25, 0.75], 4))
    weighted = names["less_of_right"](first, rewards)
    np.testing.assert_array_equal(weighted, np.where(np.array(rewards) == 1, 0.1 * first, first))


def test_everything_that_is_exported_is_there_and_named_on_the_page() -> None:
    page = (REPOSITORY / "docs" / "library.md").read_text()
    for name in meds_openrlhf.__all__:
        assert getattr(meds_openrlhf, name).__name__ == name
        assert f"`{name}" in page or f" {name}(" in page or f"{name}(" in page, name


@pytest.mark.needs("numba")
def test_what_the_page_reads_of_a_memory_is_read(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "library.md").read_text()
    (reads,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "open_memory" in block]
    shutil.copytree(REPOSITORY / "examples" / "tour_run", tmp_path / "runs" / "my-run")
    program = f"{reads}\nprint(len(atlas.rows), len(atlas.responses(atlas.in_log.tolist())))"
    command = [sys.executable, "-c", program]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    *steps, overview, counts = finished.stdout.splitlines()
    assert sum(int(line.split()[1]) for line in steps) == int(counts.split()[0])
    assert overview.startswith("Overview(prompts=6, ")
    assert 0 < int(counts.split()[1]) < int(counts.split()[0])
    assert (tmp_path / "replayed.arrow").is_file()
