"""What an evaluation finds out before anything starts."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Config

from meds_openrlhf.arithmetic.tiny_policy import build_char_tokenizer
from meds_openrlhf.config import ConfigError
from meds_openrlhf.evaluation.evaluate import Evaluation, Progress
from meds_openrlhf.evaluation.request import Request
from meds_openrlhf.evaluation.samples import Sample, SampleStore
from meds_openrlhf.paths import RunPaths


@pytest.fixture
def request_for(tmp_path: Path) -> Request:
    """For a model without weights: nothing here may want them."""
    config = Qwen2Config(vocab_size=261, hidden_size=24, num_attention_heads=3, max_position_embeddings=64)
    config.save_pretrained(tmp_path / "policy")
    build_char_tokenizer().save_pretrained(tmp_path / "policy")
    problems = [{"id": str(number), "prompt": f"{number}+{number}", "answer": str(2 * number)} for number in range(3)]
    (tmp_path / "sums.jsonl").write_text("".join(f"{json.dumps(problem)}\n" for problem in problems))
    return Request(
        models=(str(tmp_path / "policy"),),
        benchmarks=("sums",),
        out=tmp_path / "out",
        data=tmp_path,
        n=20,
        temperature=1.0,
        top_p=1.0,
        seed=0,
        max_tokens=1000,
        engines=None,
        tensor_parallel=1,
        wait_seconds=1.0,
        on_cpu=True,
    )


def test_a_check_leaves_nothing_behind(request_for: Request) -> None:
    evaluation = Evaluation(request_for)
    assert not request_for.out.exists()
    (subject,) = evaluation.subjects
    assert subject.label == "policy"
    assert subject.prompts["sums"]["1"] == tuple(build_char_tokenizer().encode("1+1"))
    assert subject.known.longest([(1, 2, 3)], 10) == 13
    assert subject.known.longest([(1, 2, 3)], 1000) == 64  # no further than the model reads
    (subject,) = Evaluation(replace(request_for, max_tokens=None)).subjects
    assert subject.settings.max_tokens == 7168  # the paper's, without a run
    (request_for.data / "policy" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"MODEL=.*policy: cannot be loaded \("):
        Evaluation(request_for)


def test_answers_are_found_and_agents_named_as_in_training(request_for: Request, tmp_path: Path) -> None:
    (tmp_path / "policy/model.safetensors").write_bytes(b"")
    for name, agent in (("plain", "null"), ("tools", "mine.py")):
        (tmp_path / name).mkdir()
        config = f"meds: {{run_dir: {name}, features.answer_pattern: 'Answer: (.*)'}}\n"
        config += f"train.agent_func_path: {agent}\nrollout.max_new_tokens: 9\n"
        RunPaths(tmp_path / name).config.write_text(config)
        shutil.copytree(tmp_path / "policy", RunPaths(tmp_path / name).model)
    said: list[str] = []
    runs = replace(request_for, models=(f"{tmp_path}/plain", f"{tmp_path}/tools"))
    assert {one.settings.answer_pattern for one in Evaluation(runs, said.append).subjects} == {"Answer: (.*)"}
    RunPaths(tmp_path / "tools").config.write_text("meds: {run_dir: tools}\n")
    with pytest.raises(ConfigError, match=r"--answer-pattern: must be given: .*tools: None\)"):
        Evaluation(runs)
    told = [line for line in said if "agent" in line]
    assert told == [
        f"{tmp_path}/tools was trained with the agent mine.py, which is not used: "
        "responses are single turns without tools"
    ]


def test_only_what_is_missing_is_to_be_drawn(request_for: Request) -> None:
    evaluation = Evaluation(request_for)
    with evaluation.opened() as (sampling,):
        assert (sampling.total, sampling.present, sampling.right) == (60, 0, 0)
        assert [len(block.indices) for block in sampling.blocks] == [16, 16, 16, 4, 4, 4]
        with pytest.raises(ConfigError, match="written by another process"), Evaluation(request_for).opened():
            pass
    with SampleStore(request_for.out / "policy" / "sums.jsonl") as store:
        store.append([Sample("1", index, "", 1, False, None, index < 3) for index in range(17)])
    for n, present, blocks in ((20, 17, [16, 3, 16, 4, 4]), (17, 17, [16, 16, 1, 1]), (4, 4, [4, 4])):
        with Evaluation(replace(request_for, n=n)).opened() as (sampling,):
            assert (sampling.present, sampling.right) == (present, 3)
            assert [len(block.indices) for block in sampling.blocks] == blocks


def test_other_settings_are_refused_before_anything_starts(request_for: Request) -> None:
    with Evaluation(request_for).opened():
        pass
    with pytest.raises(ConfigError, match=r"--temperature=0.5: does not fit the samples in"):
        Evaluation(replace(request_for, temperature=0.5))
    (request_for.data / "sums.jsonl").write_text('{"id": "9", "prompt": "1+1", "answer": "2"}\n')
    with pytest.raises(ConfigError, match=r"--benchmarks=sums: does not fit"):
        Evaluation(request_for)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "--n=0: must be at least 1"),
        ({"tensor_parallel": 0}, "--tensor-parallel=0: must be at least 1"),
        ({"tensor_parallel": 2}, "--tensor-parallel=2: is not a size over which"),
        ({"temperature": float("nan")}, "--temperature=nan: must be between"),
        ({"top_p": 0.0}, "--top-p=0.0: must be above 0"),
        ({"wait_seconds": -1.0}, "--wait=-1.0: must be"),
    ],
)
def test_numbers_that_mean_nothing(change: dict[str, Any], message: str, request_for: Request) -> None:
    with pytest.raises(ConfigError) as error:
        Evaluation(replace(request_for, **change))
    assert str(error.value).startswith(message)
    assert not request_for.out.exists()


def test_a_prompt_that_fills_the_context(request_for: Request) -> None:
    problem = {"id": "long", "prompt": "1" * 64, "answer": "1"}
    (request_for.data / "sums.jsonl").write_text(json.dumps(problem) + "\n")
    with pytest.raises(ConfigError, match="sums=long: has 64 tokens, but policy reads 64, response included"):
        Evaluation(request_for)


def test_without_a_terminal_a_line_is_written_at_every_tenth() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    with progress.of("policy", total=50, present=4, right=4):
        for _ in range(23):
            progress.add(2, 1)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "policy: 6 of 50 samples, pass@1 0.83"
    assert [int(line.split()[1]) for line in lines] == [6, 10, 16, 20, 26, 30, 36, 40, 46, 50]
