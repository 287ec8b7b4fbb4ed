"""What the rollout log says of responses: their texts, where the answer is, and whose texts are kept."""

import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from meds_openrlhf.arithmetic.tiny_policy import build_char_tokenizer
from meds_openrlhf.config import ConfigError
from meds_openrlhf.memory.sets import UNASSIGNED
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.log import read_rollouts
from meds_openrlhf.rollouts.recorder import RolloutRecorder, forget_after
from meds_openrlhf.rollouts.texts import write_reader
from meds_openrlhf.step_log import StepLog
from tests.rollouts.tables import step_table

TOKENIZER = build_char_tokenizer()
END = TOKENIZER.eos_token
TEXTS = [
    "2+3 is \\boxed{5}",
    "so \\boxed{6}",
    "first \\boxed{4}, no \\boxed{7}. Well 7",
    "none",
    "\\boxed{5} or \\boxed{",
]
LABELS = [0, None, 1, -1, 0]
Turns = list[tuple[str, bool]]  # each the policy's own, or a tool's reply


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


def record(
    paths: RunPaths, responses: Sequence[str | Turns], labels: Sequence[int | None] = (), *,
    step: int = 1, keep: str = "all", pattern: str | None = None, **given: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Record a step of two prompts in turn, all wrong unless ``given``; returns all rows of the log."""
    turns = [[(one, True)] if isinstance(one, str) else one for one in responses]
    pieces = [[(TOKENIZER.encode(text, add_special_tokens=False), own) for text, own in one] for one in turns]
    n, all_labels = len(responses), labels or [None] * len(responses)
    fields = {
        "step": step,
        "prompt": [f"key {i % 2}" for i in range(n)],
        "prompt_text": [f"prompt {i % 2}" for i in range(n)],
        "ground_truth": [("7", None)[i % 2] for i in range(n)],
        "token_ids": np.array([token for one in pieces for ids, _ in one for token in ids], np.int32),
        "tokens": np.array([sum(len(ids) for ids, _ in one) for one in pieces]),
        "generated": np.array([own for one in pieces for ids, own in one for _ in ids], bool),
        "correct": np.zeros(n, bool),
        "reward": np.zeros(n, np.float32),
        "shaped_reward": np.full(n, -0.125, np.float32),
        "label": np.array([UNASSIGNED if label is None else label for label in all_labels], np.int32),
        "cluster_size": np.array([0 if label is None else 5 - label for label in all_labels], np.int32),
        "truncated": np.zeros(n, bool),
    }
    TOKENIZER.save_pretrained(paths.model)
    reader = write_reader(str(paths.model), pattern, paths.tokenizer)
    assert len(pickle.dumps(reader)) < 1000 < paths.tokenizer.stat().st_size  # a reader travels light
    assert RolloutRecorder(paths, reader, keep).record(step_table(n, **{**fields, **given})) == step
    return [row for table in read_rollouts(paths) for row in table.to_pylist()]


def clusters(paths: RunPaths) -> dict[str, Any]:
    return StepLog(paths.clusters).read()[0]


def test_every_response_with_its_answer_and_its_place_and_the_biggest_clusters(paths: RunPaths) -> None:
    rows = record(paths, TEXTS, LABELS)
    assert [row["response"] for row in rows] == TEXTS
    assert [row["answer"] for row in rows] == ["5", "6", "7", None, None]
    assert [row["answer_start"] for row in rows] == [14, 10, 27, None, None]
    assert [row["label"] for row in rows] == LABELS
    assert [row["cluster_size"] for row in rows] == [5, 0, 4, 6, 5]
    assert [row["tokens"] for row in rows] == [len(text) for text in TEXTS]
    assert {row["penalty"] for row in rows} == {0.125}
    assert (rows[1]["prompt_text"], rows[1]["ground_truth"], rows[2]["ground_truth"]) == ("prompt 1", None, "7")
    line = clusters(paths)
    assert line["histograms"]["meds/cluster_sizes"] == {"edges": [1, 2, 4, 8], "counts": [0, 0, 4]}
    assert sum(line["histograms"]["meds/penalties"]["counts"]) == 5
    first, second = line["biggest_clusters"]
    assert first == {
        "prompt": "key 0", "prompt_text": "prompt 0", "label": 0, "size": 5, "members": 2, "answer": "5",
        "response": TEXTS[0],
    }  # fmt: skip
    assert (second["label"], second["size"], second["answer"]) == (1, 4, "7")


@pytest.mark.parametrize(
    ("response", "pattern", "shown", "answer", "start"),
    [
        ([("so \\boxed{1}", True), (" tool: \\boxed{2} ", False), ("then", True)], None,
         "so \\boxed{1} tool: \\boxed{2} then", "1", 10),
        ("it is: 12 ", r"is:\s*(.*)", "it is: 12 ", "12", 7),
        (f"#### 12{END}{END}", "#### (.*)", "#### 12", "12", 5),
        (f"a{END}b \\boxed{{3}}{END}", None, f"a{END}b \\boxed{{3}}", "3", 10 + len(END)),
        (f"so {END} 12\n", rf"{re.escape(END)}\s*(.*)", f"so {END} 12\n", "12", len(END) + 4),
        ([], None, "", None, None),
    ],
)  # fmt: skip
def test_answers_are_the_policys_own_with_special_tokens_shown(
    paths: RunPaths, response: str | Turns, pattern: str | None, shown: str, answer: str | None, start: int | None
) -> None:
    row = record(paths, ["before", response, "after"], pattern=pattern)[1]
    assert (row["response"], row["answer"], row["answer_start"]) == (shown, answer, start)


def test_more_responses_than_are_decoded_at_once(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meds_openrlhf.rollouts.texts.AT_ONCE", 2)
    assert [row["response"] for row in record(paths, [*TEXTS, []])] == [*TEXTS, ""]


def test_sampled_log_keeps_one_text_of_each_kind(paths: RunPaths) -> None:
    correct = np.array([False, False, False, False, True, True, False, False])
    texts = [f"{i} is \\boxed{{{answer}}}" for i, answer in enumerate("77777778")]
    # Prompts alternate: 0 and 2 share prompt, label and answer; 1 and 3 not the label; 5 and 7 not the verdict.
    rows = record(paths, texts, [0, 0, 0, 1, None, None, None, 1], keep="sampled", correct=correct)
    assert [row["sample"] for row in rows if row["response"] is None] == [2]
    assert [row["answer"] for row in rows] == list("77777778")


def test_none_keeps_the_clusters_and_no_text(paths: RunPaths) -> None:
    assert record(paths, TEXTS, LABELS, keep="none") == []
    assert not paths.rollouts_folder.exists()
    first, second = clusters(paths)["biggest_clusters"]
    assert (first["prompt"], first["prompt_text"], first["answer"], first["response"]) == ("key 0", "", None, None)
    assert (first["size"], second["size"]) == (5, 4)


def test_long_examples_are_cut_and_empty_histograms_left_out(paths: RunPaths) -> None:
    record(paths, ["a" * 4001 + "b"], [0], prompt_text=["p" * 4001], cluster_size=np.array([1], np.int32))
    (example,) = clusters(paths)["biggest_clusters"]
    assert (example["prompt_text"], example["response"]) == ("p" * 4000 + " ...", "... " + "a" * 3999 + "b")
    record(paths, TEXTS[:2], step=2, shaped_reward=np.zeros(2, np.float32))
    assert StepLog(paths.clusters).read()[1] == {"step": 2, "histograms": {}, "biggest_clusters": []}


def test_penalties_that_are_no_numbers_or_differ_by_rounding_alone(paths: RunPaths) -> None:
    reward = np.array([0.0, 0.0, 0.0, np.nan, np.inf], np.float32)
    shaped = -np.array([0.2, np.nextafter(np.float32(0.2), np.float32(1)), 0.0, 0.0, 0.0], np.float32)
    assert np.isnan(record(paths, TEXTS, reward=reward, shaped_reward=shaped)[3]["reward"])
    histogram = clusters(paths)["histograms"]["meds/penalties"]
    assert histogram["counts"] == [0] * 19 + [2]
    assert (histogram["edges"][0], histogram["edges"][-1]) == (0, pytest.approx(0.2))


def test_a_run_that_goes_back_forgets_what_came_later(paths: RunPaths) -> None:
    for step in (1, 2, 3):
        record(paths, [f"step {step}"], step=step)
    forget_after(paths, 2)
    rows = record(paths, ["again"], step=3)
    assert [(row["step"], row["response"]) for row in rows] == [(1, "step 1"), (2, "step 2"), (3, "again")]
    assert [line["step"] for line in StepLog(paths.clusters).read()] == [1, 2, 3]


def test_files_are_compressed(paths: RunPaths) -> None:
    record(paths, ["the same words again and again " * 40] * 50)
    assert paths.rollouts(1).stat().st_size < 10_000


def test_only_the_columns_that_are_asked_for(paths: RunPaths) -> None:
    record(paths, TEXTS)
    (table,) = read_rollouts(paths, ["step", "answer"])
    assert (table.schema.names, table.column("answer").type) == (["step", "answer"], pa.string())
    with pytest.raises(ConfigError, match=r"or not by this version .*verdict"):
        list(read_rollouts(paths, ["verdict"]))
    paths.rollouts(1).write_bytes(b"something else")
    with pytest.raises(ConfigError, match="cannot be read as Arrow"):
        list(read_rollouts(paths))
