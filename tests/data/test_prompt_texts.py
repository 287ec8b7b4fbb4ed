"""Prompts as people read them."""

import json
from pathlib import Path

import pytest

from meds_openrlhf.config import MedsSettings, RunConfig
from meds_openrlhf.data.prompt_texts import around_texts, questions, texts_of_data_set, without_template
from meds_openrlhf.data.questions import qwen_math_prompt
from meds_openrlhf.memory.rows import prompt_key

HEAD = "<|im_start|>system\nReason.<|im_end|>\n<|im_start|>user\n"
TAIL = "<|im_end|>\n<|im_start|>assistant\n"


def test_what_all_texts_share_is_taken_off_line_by_line() -> None:
    texts = {"1": f"{HEAD}What is 3?\nSay.{TAIL}", "2": f"{HEAD}What is 4?\nSay.{TAIL}"}
    assert without_template(texts) == {"1": "What is 3?", "2": "What is 4?"}
    assert without_template({"1": "3 + 3", "2": "3 + 4"}) == {"1": "3 + 3", "2": "3 + 4"}
    # A single text keeps all but the markers.
    assert without_template({"1": f"{HEAD}x{TAIL}"}) == {"1": "system\nReason.\nuser\nx\nassistant"}
    assert questions(["1"], {}, None) == {}
    assert questions(["1"], {"1": "a\nb", "2": "a\nc"}, None) == {"1": "a\nb"}


def test_a_prompt_of_the_data_set_is_found_by_the_hash_of_what_engines_get(tmp_path: Path) -> None:
    """It is shown without its template."""
    problems = ["What is 2 + 2?", "Find\nx."]
    rows = [{"prompt": qwen_math_prompt(text)} for text in problems]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = {"data.prompt_dataset": str(tmp_path / "train.jsonl"), "data.input_key": "prompt"}
    first, second = (prompt_key(row["prompt"]) for row in rows)
    config = RunConfig(MedsSettings(run_dir="x"), flags)
    assert questions([first, second, "c"], {}, config) == {first: problems[0], second: problems[1]}
    assert questions([second], {}, config) == {second: "Find\nx."}

    framed = RunConfig(config.meds, {**flags, "data.input_template": "Q: {}"})
    key = prompt_key(f"Q: {rows[0]['prompt']}")
    assert questions([key, second], {}, framed) == {key: problems[0]}
    assert texts_of_data_set(RunConfig(config.meds, {**flags, "data.apply_chat_template": True})) == {}


@pytest.mark.parametrize(
    ("template", "around"),
    [
        ("Q: {}\nA:", ("Q: ", "\nA:")),
        ("Put it in \\boxed{{}}.\n{0}\n", ("Put it in \\boxed{}.\n", "\n")),
        ("no place", ("", "")),
        ("{}{}", ("", "")),
        ("{:>999999999}", ("", "")),
        ("{", ("", "")),
        (None, ("", "")),
    ],
)
def test_a_template_is_read_as_it_is_formatted(template: str | None, around: tuple[str, str]) -> None:
    config = RunConfig(MedsSettings(run_dir="x"), {"data.input_template": template})
    assert around_texts(config) == around
    if template is not None and any(around):
        assert template.format("x") == "x".join(around)
