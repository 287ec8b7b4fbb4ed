"""The log as the scripts read it: the columns that they ask for, and no text copied into one place."""

from pathlib import Path

import pyarrow as pa

from meds_openrlhf.rollouts.run import TEXTS, logged_rollouts, prompt_codes, texts_of
from tests.analysis.runs import write_log

STEPS = {1: {"p": ["a", "b"], "q": ["c"]}, 2: {"q": ["d", "e"]}, 3: {"p": ["f"]}}


def test_every_step_is_a_chunk_of_its_own_in_the_order_of_samples(tmp_path: Path) -> None:
    run = write_log(tmp_path, STEPS)
    rows = logged_rollouts(run, ("prompt_text", "step", "response"))
    assert rows.column_names == ["step", "sample", "prompt", "correct", "prompt_text", "response"]
    assert prompt_codes(rows).tolist() == [0, 0, 1, 1, 1, 0]
    assert rows["response"].to_pylist() == ["a", "b", "c", "d", "e", "f"]
    assert rows["prompt_text"].to_pylist()[1:4] == ["Question p?", "Question q?", "Question q?"]
    assert rows["response"].num_chunks == 3


def test_texts_are_fetched_in_the_order_of_the_rows(tmp_path: Path) -> None:
    run = write_log(tmp_path, STEPS)
    rows = logged_rollouts(run).take(pa.array([5, 4, 0]))
    asked = [("Question p?", "f", "truth of p"), ("Question q?", "e", "truth of q"), ("Question p?", "a", "truth of p")]
    assert texts_of(run, rows) == [dict(zip(TEXTS, texts)) for texts in asked]
