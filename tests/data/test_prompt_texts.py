"""Prompts as people read them."""

import json
from pathlib import Path

import pytest

from meds_openrlhf.config import MedsSettings, RunConfig
from meds_openrlhf.data.prompt_texts import messages_in, questions, texts_of_data_set, without_template
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
    ("text", "conversation"),
    [
        ("What is 2*3?", [("user", "What is 2*3?")]),
        (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2*3?<|im_end|>\n<|im_start|>assistant\n",
            [("system", "Be brief."), ("user", "2*3?")],
        ),
        ("system\nBe brief.\nuser\nWhat is\n2*3?\nassistant\n", [("system", "Be brief."), ("user", "What is\n2*3?")]),
        (
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n2*3?<|eot_id|><|start_header_id|>assistant"
            "<|end_header_id|>\n\n",
            [("user", "2*3?")],
        ),
        (
            "user\n1+1?\nassistant\n2\nuser\nAnd 2*3?\nassistant\n",
            [("user", "1+1?"), ("assistant", "2"), ("user", "And 2*3?")],
        ),
        ("Who is the\nuser\nhere?", [("user", "Who is the\nuser\nhere?")]),
        ("user\nassistant\n", [("user", "user\nassistant\n")]),
        ("", [("user", "")]),
    ],
)
def test_a_templates_prompt_is_a_conversation(text: str, conversation: list[tuple[str, str]]) -> None:
    assert messages_in(text) == [{"role": role, "content": content} for role, content in conversation]
