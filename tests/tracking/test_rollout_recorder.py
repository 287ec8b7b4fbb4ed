"""What the log of rollouts says of responses: their texts, where the answer is, and whose texts are kept."""

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.features.answer import AnswerOpenings
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.response_texts import ResponseReader
from meds_openrlhf.tracking.rollout_log import read_rollouts
from meds_openrlhf.tracking.rollout_recorder import RolloutRecorder, forget_after
from meds_openrlhf.tracking.step_log import StepLog
from tests.tracking.rollouts import TOKENIZER, step_rollouts

TEXTS = [
    "2+3 is \\boxed{5}",
    "so \\boxed{6}",
    "first \\boxed{4}, no \\boxed{7}. Well 7",
    "none",
    "\\boxed{5} or \\boxed{",
]


def recorder(paths: RunPaths, keep: str = "all", **openings: str) -> RolloutRecorder:
    TOKENIZER.save_pretrained(paths.model)
    reader = ResponseReader.of(str(paths.model), AnswerOpenings(**openings), paths.tokenizer)
    return RolloutRecorder(paths, reader, keep)


def test_a_reader_travels_light(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    reader = ResponseReader.of(str(tmp_path), AnswerOpenings(), tmp_path / "copy.json")
    assert len(pickle.dumps(reader)) < 1000 < (tmp_path / "copy.json").stat().st_size


def own(texts: list[str]) -> list[list[tuple[str, bool]]]:
    return [[(text, True)] for text in texts]


def read(paths: RunPaths) -> list[dict]:
    return [row for table in read_rollouts(paths) for row in table.to_pylist()]


def test_every_response_with_its_answer_and_its_place(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    rollouts = step_rollouts(3, own(TEXTS), [0, None, 1, -1, 0])
    assert recorder(paths).record(rollouts) == 3
    rows = read(paths)
    assert [row["response"] for row in rows] == TEXTS
    assert [row["answer"] for row in rows] == ["5", "6", "7", None, None]
    assert [row["answer_start"] for row in rows] == [14, 10, 27, None, None]
    assert [row["label"] for row in rows] == [0, None, 1, -1, 0]
    assert [row["cluster_size"] for row in rows] == [5, 0, 4, 6, 5]
    assert [row["tokens"] for row in rows] == [len(text) for text in TEXTS]
    assert {row["penalty"] for row in rows} == {0.125}
    assert rows[1]["prompt_text"] == "prompt 1"


def test_a_tools_reply_is_shown_and_is_no_answer(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    turns = [[("so \\boxed{1}", True), (" tool: \\boxed{2} ", False), ("then", True)]]
    recorder(paths).record(step_rollouts(1, turns, [None]))
    row = read(paths)[0]
    assert row["response"] == "so \\boxed{1} tool: \\boxed{2} then"
    assert (row["answer"], row["answer_start"]) == ("1", 10)


def test_an_answer_after_a_pattern(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    recorder(paths, openings=(), pattern=r"is:\s*(.*)").record(step_rollouts(1, own(["it is: 12 "]), [None]))
    assert (read(paths)[0]["answer"], read(paths)[0]["answer_start"]) == ("12", 7)


def test_sampled_keeps_the_text_of_one_of_each_prompt_verdict_cluster_and_answer(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    correct = np.array([False, False, False, False, True, True, False, False])
    texts = [f"{i} is \\boxed{{{answer}}}" for i, answer in enumerate("77777778")]
    # Prompts alternate: 0 and 2 share prompt, label and answer; 1 and 3 not the label; 5 and 7 not the verdict.
    labels = [0, 0, 0, 1, None, None, None, 1]
    recorder(paths, "sampled").record(step_rollouts(1, own(texts), labels, correct=correct))
    rows = read(paths)
    assert [row["sample"] for row in rows if row["response"] is None] == [2]
    assert [row["answer"] for row in rows] == list("77777778")


def test_none_keeps_the_clusters_and_no_text(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    recorder(paths, "none").record(step_rollouts(1, own(TEXTS), [0, None, 1, -1, 0]))
    assert not paths.rollouts_folder.exists()
    first, second = StepLog(paths.clusters).read()[0]["biggest_clusters"]
    assert (first["prompt"], first["prompt_text"], first["answer"], first["response"]) == ("key 0", "", None, None)
    assert (first["size"], second["size"]) == (5, 4)


def test_clusters_are_summed_up_with_an_example(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    recorder(paths).record(step_rollouts(1, own(TEXTS), [0, None, 1, -1, 0]))
    line = StepLog(paths.clusters).read()[0]
    assert line["histograms"]["meds/cluster_sizes"] == {"edges": [1, 2, 4, 8], "counts": [0, 0, 4]}
    assert sum(line["histograms"]["meds/penalties"]["counts"]) == 5
    first, second = line["biggest_clusters"]
    assert first == {
        "prompt": "key 0", "prompt_text": "prompt 0", "label": 0, "size": 5, "members": 2, "answer": "5",
        "response": TEXTS[0],
    }  # fmt: skip
    assert (second["label"], second["size"], second["answer"]) == (1, 4, "7")


def test_a_step_without_clusters_or_penalties_has_no_histogram(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    rollouts = step_rollouts(1, own(TEXTS[:2]), [None, None], shaped_reward=np.zeros(2, np.float32))
    recorder(paths).record(rollouts)
    assert StepLog(paths.clusters).read() == [{"step": 1, "histograms": {}, "biggest_clusters": []}]


def test_empty_responses_are_rows_too(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    recorder(paths).record(step_rollouts(1, [[], [("\\boxed{1}", True)], []], [None] * 3))
    assert [row["response"] for row in read(paths)] == ["", "\\boxed{1}", ""]


def test_special_tokens_are_shown_inside_a_text_and_not_at_its_end(tmp_path: Path) -> None:
    paths, end = RunPaths(tmp_path), TOKENIZER.eos_token
    texts = [f"#### 12{end}{end}", f"a{end}b \\boxed{{3}}{end}"]
    recorder(paths, openings=("#### ", "\\boxed{")).record(step_rollouts(1, own(texts), [None] * 2))
    rows = read(paths)
    assert [row["response"] for row in rows] == ["#### 12", f"a{end}b \\boxed{{3}}"]
    assert [(row["answer"], row["answer_start"]) for row in rows] == [("12", 5), ("3", len(f"a{end}b ") + 7)]


def test_an_answer_may_be_opened_by_a_special_token(tmp_path: Path) -> None:
    paths, opening = RunPaths(tmp_path), TOKENIZER.eos_token
    recorder(paths, openings=(opening,)).record(step_rollouts(1, own([f"so {opening} 12\n"]), [None]))
    assert read(paths)[0]["answer"] == "12"


def test_more_responses_than_are_decoded_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meds_openrlhf.tracking.response_texts.AT_ONCE", 2)
    paths = RunPaths(tmp_path)
    recorder(paths).record(step_rollouts(1, [*own(TEXTS), []], [None] * 6))
    assert [row["response"] for row in read(paths)] == [*TEXTS, ""]


def test_a_reward_that_is_no_number_is_logged_all_the_same(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    reward = np.array([np.nan, np.inf, 0.0], np.float32)
    recorder(paths).record(step_rollouts(1, own(TEXTS[:3]), [None] * 3, reward=reward))
    assert np.isnan(read(paths)[0]["reward"])
    assert sum(StepLog(paths.clusters).read()[0]["histograms"]["meds/penalties"]["counts"]) == 1


def test_penalties_that_differ_by_rounding_alone(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    shaped = -np.array([0.2, np.nextafter(np.float32(0.2), np.float32(1)), 0.0], np.float32)
    recorder(paths).record(step_rollouts(1, own(TEXTS[:3]), [None] * 3, shaped_reward=shaped))
    histogram = StepLog(paths.clusters).read()[0]["histograms"]["meds/penalties"]
    assert histogram["counts"] == [0] * 19 + [2]
    assert histogram["edges"][0] == 0
    assert histogram["edges"][-1] == pytest.approx(0.2)


def test_a_run_that_goes_back_forgets_what_came_later(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    for step in (1, 2, 3):
        recorder(paths).record(step_rollouts(step, own([f"step {step}"]), [None]))
    forget_after(paths, 2)
    recorder(paths).record(step_rollouts(3, own(["again"]), [None]))
    assert [(row["step"], row["response"]) for row in read(paths)] == [(1, "step 1"), (2, "step 2"), (3, "again")]
    assert [line["step"] for line in StepLog(paths.clusters).read()] == [1, 2, 3]


def test_files_are_compressed_and_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = RunPaths(tmp_path)
    texts = ["the same words again and again " * 40] * 50
    recorder(paths).record(step_rollouts(1, own(texts), [None] * 50))
    assert paths.rollouts(1).stat().st_size < 10_000
    assert sum(map(len, texts)) > 60_000

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        recorder(paths).record(step_rollouts(2, own(["x"]), [None]))
    assert paths.rollout_steps() == [1]


def test_only_the_columns_that_are_asked_for(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    recorder(paths).record(step_rollouts(1, own(TEXTS), [None] * 5))
    (table,) = read_rollouts(paths, ["step", "answer"])
    with pytest.raises(ConfigError, match="has no column verdict, so it is not a log of this version"):
        list(read_rollouts(paths, ["verdict"]))
    paths.rollouts(1).write_bytes(b"something else")
    with pytest.raises(ConfigError, match="cannot be read as Arrow"):
        list(read_rollouts(paths))
    assert table.schema.names == ["step", "answer"]
    assert table.column("answer").type == pa.string()
