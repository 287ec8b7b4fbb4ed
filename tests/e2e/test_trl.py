"""The page's code in TRL: both ways to ask the memory train a small policy, and the atlas reads what TRL wrote."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from meds_openrlhf.cli.main import main
from meds_openrlhf.features.kind import Kind
from meds_openrlhf.memory.stored import open_memory
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
