"""The page's code in TRL: both ways to ask the memory train a small policy, and the atlas reads what TRL wrote."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from meds_openrlhf.cli.main import main
from meds_openrlhf.features.kind import Kind
from meds_openrlhf.memory.rows import prompt_key
from meds_openrlhf.memory.stored import open_memory
from meds_openrlhf.memory.successes import Successes, count_visits
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.log import read_rollouts
from tests.e2e.conftest import REPOSITORY, finished

STEPS = 4
PROGRAM = """
import json, sys
from pathlib import Path
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

torch.set_num_threads(1)
assets, folder, out, steps_per_generation = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
{example}
lines = [json.loads(line) for line in (assets / "train.jsonl").read_text().splitlines()][:4]
tokenizer = AutoTokenizer.from_pretrained(assets / "policy")
data = Dataset.from_list([{{"prompt": line["prompt"], "answer": line["answer"]}} for line in lines])
trainer = {trainer}(
    model=AutoModelForCausalLM.from_pretrained(assets / "policy"),
    processing_class=tokenizer,
    reward_funcs=reward,
    train_dataset=data,
    args=GRPOConfig(
        output_dir=out, max_steps={steps}, per_device_train_batch_size=16, num_generations=8, max_completion_length=48,
        steps_per_generation=steps_per_generation, gradient_accumulation_steps=1, learning_rate=1e-4, use_cpu=True,
        logging_steps=1, log_completions=True, report_to=[], save_strategy="no", disable_tqdm=True, seed=1))
losses = trainer._compute_loss


def checked(model, inputs):
    assert set(inputs["advantages"].tolist()) <= given
    return losses(model, inputs)


given, scored = set(), trainer._generate_and_score_completions


def kept(inputs):
    found = scored(inputs)
    given.update(found["advantages"].tolist())
    right = torch.tensor(judged["correct"])
    unshaped = group_advantages(right, right, right, group=8)
    assert (found["advantages"].numpy() <= np.maximum(unshaped, 0) + 1e-6)[~right.numpy()].all()
    return found


trainer._compute_loss, trainer._generate_and_score_completions = checked, kept
trainer.train()
print("rows", memory.stats().rows, "advantages", len(given))
"""
BY_LAYERS = """
class Trainer(RecordingTrainer, LawfulTrainer):
    pass


model_layers = AutoModelForCausalLM.from_pretrained(assets / "policy").config.num_hidden_layers
memory = MemoryShard(MemoryPaths(folder), Sharding(0, 1), ShardSettings(layers=model_layers))


def reward(prompts, completions, answer, trainer_state, **_):
    right = np.array([answer_of(text) == truth for text, truth in zip(completions, answer)])
    wrong = np.flatnonzero(~right & (trainer.positions.numpy() >= 0))
    sizes = np.zeros(len(right), int)
    if len(wrong):
        keys = [prompt_key(prompts[row]) for row in wrong]
        rows = make_rows(wrong, keys, right[wrong], trainer.layer_logits[wrong])
        found = memory.observe(trainer_state.global_step, rows)
        sizes[found.sample] = found.size
    shaped = shaped_reward(right.astype(float), cluster_penalty(sizes, alpha=0.1, beta=0.5), right)
    judged.update(shaped=shaped, raw=right, correct=right)
    return shaped.tolist()
"""


def train(program: str, assets: Path, folder: Path, steps_per_generation: int) -> int:
    """Run the program and return the number of rows in its memory."""
    words = [sys.executable, "-c", program, str(assets), str(folder / "memory"), str(folder), str(steps_per_generation)]
    ended = finished(words)
    assert ended.returncode == 0
    return int(re.findall(r"^rows (\d+) advantages \d+$", ended.stdout, re.MULTILINE)[0])


def test_the_pages_code_trains_and_the_atlas_reads_the_completions(assets: Path, tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "library.md").read_text()
    *_, by_answers, recording = re.findall(r"```python\n(.*?)```", page, re.DOTALL)

    answers = PROGRAM.format(example=by_answers, trainer="LawfulTrainer", steps=STEPS)
    rows = train(answers, assets, tmp_path / "answers", steps_per_generation=1)
    assert rows > STEPS

    layers = PROGRAM.format(example=by_answers + recording + BY_LAYERS, trainer="Trainer", steps=STEPS)
    assert train(layers, assets, tmp_path / "layers", steps_per_generation=2) > STEPS // 2

    out = tmp_path / "atlas"
    dump = tmp_path / "answers" / "completions"
    assert main(["atlas", str(dump), "--model", str(assets / "policy"), "--out", str(out)]) == 0
    logged = [row for table in read_rollouts(RunPaths(out)) for row in table.to_pylist()]
    assert len(logged) == STEPS * 16
    memory = open_memory(out)
    wrong = [row for row in logged if not row["correct"]]
    assert sum(row["answer"] is not None for row in wrong) == rows
    begun = [row for row in wrong if re.search(r"\\boxed\{.", row["response"])]  # a fingerprint needs no closing brace
    assert sum(len(rows) for _, rows in memory.rows_by_step()) == len(begun) >= rows
    assert memory.format.kind is Kind.LAYER_LOGITS
    assert (out / "report.html").stat().st_size > 50_000


FOCAL = """
import json, sys
from pathlib import Path
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from meds_openrlhf import answer_of
from meds_openrlhf.trl import FocalGRPOTrainer

torch.set_num_threads(1)
assets, folder, steps, gamma, uses = (
    Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))


def length(completions, **_):
    return [0.01 * len(text) for text in completions]


def reward(completions, answer, **_):
    return [float(answer_of(text) == truth) for text, truth in zip(completions, answer)]


lines = [json.loads(line) for line in (assets / "train.jsonl").read_text().splitlines()][:4]
data = Dataset.from_list([{"prompt": line["prompt"], "answer": line["answer"]} for line in lines])
args = GRPOConfig(
    output_dir=folder, max_steps=steps, per_device_train_batch_size=16, num_generations=8, max_completion_length=48,
    learning_rate=1e-4, use_cpu=True, logging_steps=1, log_completions=True, report_to=[], save_steps=2,
    num_iterations=uses,
    disable_tqdm=True, seed=1)
kind, own = (GRPOTrainer, {}) if gamma == "none" else (
    FocalGRPOTrainer, {"focal_gamma": float(gamma), "success_decay": 0.5, "right_by": "reward"})
trainer = kind(
    model=AutoModelForCausalLM.from_pretrained(assets / "policy"),
    processing_class=AutoTokenizer.from_pretrained(assets / "policy"),
    reward_funcs=[length, reward], train_dataset=data, args=args, **own)
trainer.train(resume_from_checkpoint=True if list(Path(folder).glob("checkpoint-*")) else None)
"""


def completions(folder: Path) -> list[pd.DataFrame]:
    """Return TRL's completions, a table a step."""
    return [pd.read_parquet(path) for path in sorted((folder / "completions").glob("*.parquet"))]


def test_a_trl_trainer_weights_groups_by_remembered_success_and_resumes_with_it(assets: Path, tmp_path: Path) -> None:
    """As `GRPOTrainer` at first visits, and as a fold of the logged verdicts at the others, across a restart."""
    runs = (
        ("plain", 2, "none", 1),
        ("off", 2, "0", 1),
        ("focal", 2, "2", 1),
        ("focal", 6, "2", 1),
        ("twice", 3, "2", 2),
    )
    for name, *given in runs:
        words = [sys.executable, "-c", FOCAL, str(assets), str(tmp_path / name), *map(str, given)]
        assert finished(words).returncode == 0
    for plain, off in zip(completions(tmp_path / "plain"), completions(tmp_path / "off"), strict=True):
        pd.testing.assert_frame_equal(plain, off)

    memory, weighted = Successes(decay=0.5), 0
    steps = completions(tmp_path / "focal")
    assert len(steps) == 6
    for step in steps:
        keys, right = step["prompt"].map(prompt_key), step["reward"] >= 0.5
        visits = memory.visits_of(count_visits(zip(keys, right.astype(int).tolist(), [1] * len(step))))
        memory.add(visits)
        success = np.array([visits[key].success or 0.0 for key in keys])
        groups = (step["reward"] + step["length"]).to_numpy().reshape(-1, 8)
        own = (groups - groups.mean(axis=1, keepdims=True)) / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)
        np.testing.assert_allclose(step["advantage"], own.reshape(-1) * (1 - success) ** 2, atol=1e-5)
        weighted += int((success > 0).sum())
    assert weighted > 16
    last = json.loads((tmp_path / "focal" / "checkpoint-6" / "successes.json").read_text())
    assert last == json.loads(memory.to_json())
    # Each generation is trained on for two steps. A run that resumes after three generates the second again.
    inside = json.loads((tmp_path / "twice" / "checkpoint-3" / "successes.json").read_text())
    assert {responses for _, responses, _ in inside["prompts"].values()} == {8}
    assert inside["visits"] == len(inside["prompts"]) == 2
