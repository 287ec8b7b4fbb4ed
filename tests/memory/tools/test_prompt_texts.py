"""Prompts as people read them."""

import json
from pathlib import Path

from meds_openrlhf.config import MedsSettings, RunConfig
from meds_openrlhf.config.schema import MemorySettings
from meds_openrlhf.data.templates import qwen_math_prompt
from meds_openrlhf.memory.tools.prompt_texts import prompt_texts


def test_a_prompt_is_shown_without_its_template(tmp_path: Path) -> None:
    problems = {"a": "What is 2 + 2?", "b": "Find\nx."}
    rows = [{"id": key, "prompt": qwen_math_prompt(text)} for key, text in problems.items()]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    meds = MedsSettings(run_dir="x", memory=MemorySettings(prompt_id_key="id"))
    config = RunConfig(meds, {"data.prompt_dataset": str(tmp_path / "train.jsonl"), "data.input_key": "prompt"})
    texts = prompt_texts(config, ["a", "b"])
    assert [texts.own(key) for key in ("a", "b", "c")] == ["What is 2 + 2?", "Find x.", ""]
