"""Prompts as people read them."""

import json
from pathlib import Path

from meds_openrlhf.config import MedsSettings, RunConfig
from meds_openrlhf.config.schema import MemorySettings
from meds_openrlhf.data.prompt_texts import questions, without_template
from meds_openrlhf.data.templates import qwen_math_prompt

HEAD = "<|im_start|>system\nReason.<|im_end|>\n<|im_start|>user\n"
TAIL = "<|im_end|>\n<|im_start|>assistant\n"


def test_what_all_texts_share_is_taken_off_line_by_line() -> None:
    texts = {"1": f"{HEAD}What is 3?\nSay.{TAIL}", "2": f"{HEAD}What is 4?\nSay.{TAIL}"}
    assert without_template(texts) == {"1": "What is 3?", "2": "What is 4?"}
    assert without_template({"1": "3 + 3", "2": "3 + 4"}) == {"1": "3 + 3", "2": "3 + 4"}


def test_a_single_text_keeps_all_but_the_markers() -> None:
    assert without_template({"1": f"{HEAD}x{TAIL}"}) == {"1": "system\nReason.\nuser\nx\nassistant"}
    assert questions(["1"], {}, None) == {}
    assert questions(["1"], {"1": "a\nb", "2": "a\nc"}, None) == {"1": "a\nb"}


def test_a_prompt_is_shown_without_its_template(tmp_path: Path) -> None:
    problems = {"a": "What is 2 + 2?", "b": "Find\nx."}
    rows = [{"id": key, "prompt": qwen_math_prompt(text)} for key, text in problems.items()]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    meds = MedsSettings(run_dir="x", memory=MemorySettings(prompt_id_key="id"))
    config = RunConfig(meds, {"data.prompt_dataset": str(tmp_path / "train.jsonl"), "data.input_key": "prompt"})
    assert questions(["a", "b", "c"], {}, config) == problems
    assert questions(["b"], {}, config) == {"b": "Find\nx."}
