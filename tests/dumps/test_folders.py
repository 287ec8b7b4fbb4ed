"""One rule for a folder: what holds rollouts is read, wherever it lies, and everything else is left out and counted."""

import json
import pickle
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.dumps.formats import Rollout
from meds_openrlhf.dumps.reading import Dump
from tests.dumps.test_pickled import sample, save

DATA = Path(__file__).parent / "data"
QUESTION = "What is 6*7?"


def lines(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def row(answer: str = "5", **more: object) -> dict[str, object]:
    return {"prompt": QUESTION, "response": f"\\boxed{{{answer}}}", "reward": float(answer == "42"), **more}


def add_strays(folder: Path) -> int:
    """Files that lie beside dumps; how many of them are read, and left out."""
    lines(folder / "metrics.jsonl", {"step": 1, "reward": 0.5, "loss": 0.1}, {"step": 2, "reward": 0.6})
    lines(folder / "wandb/run-1/files/wandb-summary.json", {"_step": 3, "reward": 0.4, "content": "none"})
    lines(folder / "wandb/run-1/files/media/table/rows.table.json", {"columns": ["prompt"], "data": [["a"]]})
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": [{"step": 1, "reward": 0.5}]}, indent=1))
    lines(folder / "aggregated_results.jsonl", {"eval/all/avg_score": 0.25})
    lines(folder / "stream.index.jsonl", {"line": 0, "id": "e", "kind": "train", "reward": 0.0, "trace_ids": ["t"]})
    lines(folder / "file-logger.jsonl", {"step": 1, "data": {"critic/score/mean": 0.5}})
    lines(folder / "prompts.jsonl", {"question": QUESTION, "answer": "42"})
    lines(folder / "broken.jsonl", "{broken", "[1]", "")
    (folder / "empty.jsonl").touch()
    (folder / "config.json").write_text('{\n "model_type": "qwen2"\n}')
    pq.write_table(pa.table({"prompt": [QUESTION], "reward_model": [{"ground_truth": "42"}]}), folder / "train.parquet")
    for name in ("half.parquet", "half.eval", "half.pt"):
        (folder / name).write_text("PAR1 half")
    save(folder / "optimizer.pt", {"state": {0: 1.0}, "param_groups": [1]})
    save(folder / "debug_train_7_0.pt", {"rollout_id": 0, "rank": 0, "rollout_data": {"rewards": [0.0]}})
    (folder / "old.pt").write_bytes(pickle.dumps({"samples": []}))
    with zipfile.ZipFile(folder / "other.eval", "w") as archive:
        archive.writestr("readme.txt", "none")
    (folder / "link.json").symlink_to(folder / "nowhere")
    (folder / "folder.json").mkdir()
    return 20


def read(folder: Path, **columns: str) -> tuple[list[tuple[int, list[Rollout]]], Dump]:
    dump = Dump([folder], columns=columns)
    return list(dump), dump


TRAININGS = {
    "plain": lambda folder: lines(folder / "rollouts.jsonl", row(step=1), row("42", step=2)),
    "verl": lambda folder: lines(folder / "1.jsonl", {"input": QUESTION, "output": "\\boxed{5}", "score": 0.0}),
    "slime": lambda folder: save(folder / "rollout_3.pt", {"rollout_id": 3, "samples": [sample()]}),
    "nemo-rl": lambda folder: lines(
        folder / "train_data_step2.jsonl", {"content": [[QUESTION, "\\boxed{5}", "wrong"]], "rewards": [0.0]}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAININGS)
def test_strays_are_left_out_and_counted(tmp_path: Path, name: str) -> None:
    TRAININGS[name](tmp_path)
    alone, dump = read(tmp_path)
    assert (dump.format_name, dump.counts.files_left_out) == (name, {})
    added = add_strays(tmp_path)
    among, dump = read(tmp_path)
    assert (among, dump.format_name) == (alone, name)
    assert sum(dump.counts.files_left_out.values()) == added
    assert dump.counts.left_out == {}
    assert set(dump.counts.examples) == set(dump.counts.files_left_out)


def test_strays_alone_are_no_dump(tmp_path: Path) -> None:
    add_strays(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be read \("):
        read(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["eval_1.jsonl", "eval/1.jsonl", "rollout_eval_1.jsonl", "val_data_step0.jsonl", "a/validation/step_9.jsonl"],
)
def test_evaluations_are_left_out_beside_a_training_and_read_alone(tmp_path: Path, name: str) -> None:
    evaluation = lines(tmp_path / name, row("7"), row("8"))
    [(_, alone)], dump = read(tmp_path)
    assert (len(alone), dump.counts.files_left_out) == (2, {})
    lines(tmp_path / "train/step_1.jsonl", row("9"))
    [(_, found)], dump = read(tmp_path)
    assert [rollout.response for rollout in found] == ["\\boxed{9}"]
    assert dump.counts.files_left_out == {"of an evaluation": 1}
    assert dump.counts.examples == {"of an evaluation": str(evaluation)}


def test_names_with_such_letters_are_no_evaluations(tmp_path: Path) -> None:
    for step, name in enumerate(("retrieval", "medieval", "intervals"), 1):
        lines(tmp_path / f"{name}.jsonl", row(step=step))
    assert [step for step, _ in read(tmp_path)[0]] == [1, 2, 3]


def trace(step: int, answer: str, kind: str = "train") -> dict[str, object]:
    nodes = [
        {"message": {"role": "user", "content": QUESTION}, "sampled": False},
        {"parent": 0, "message": {"role": "assistant", "content": f"\\boxed{{{answer}}}"}, "sampled": True},
    ]
    work = {"type": kind, "step": step}
    return {"run": {"type": "train", "work": work}, "traces": [{"nodes": nodes, "rewards": {"right": {"score": 0.0}}}]}


FAILED = {"run": {}, "traces": []}


def test_a_stream_of_prime_rl_is_sorted_and_separated(tmp_path: Path) -> None:
    import pyarrow

    stream = tmp_path / "monitors/file/traces/stream"
    sealed = "".join(json.dumps(trace(step, str(step))) + "\n" for step in (0, 1, 0)).encode()
    stream.mkdir(parents=True)
    frames = [pyarrow.compress(part, "zstd", asbytes=True) for part in (sealed[:50], sealed[50:])]
    (stream / "00000.jsonl.zst").write_bytes(b"".join(frames))
    for chunk in ("00001.jsonl", "00001.jsonl.zst"):  # while it is sealed, both are there
        lines(stream / chunk, *[trace(1, "1", "eval")] * 301, trace(1, "11"), trace(2, "2"), FAILED)
    found, dump = read(tmp_path)
    answers = {step: [rollout.response for rollout in rollouts] for step, rollouts in found}
    assert answers == {1: ["\\boxed{0}"] * 2, 2: ["\\boxed{1}", "\\boxed{11}"], 3: ["\\boxed{2}"]}
    assert dump.counts.left_out == {"of an evaluation": 301, "of a rollout that failed": 1}
    assert dump.counts.files_left_out == {"of rollouts that another file has as well": 1}


def test_of_all_traces_and_those_trained_on_the_former_are_read(tmp_path: Path) -> None:
    for kind, answers in (("all", "789"), ("effective", "7")):
        lines(tmp_path / f"rollouts/step_4/train/{kind}/traces.jsonl", *(trace(4, answer) for answer in answers))
    lines(tmp_path / "rollouts/step_4/eval/all/traces.jsonl", trace(4, "1", "eval"))
    [(step, rollouts)], dump = read(tmp_path)
    assert (step, len(rollouts)) == (4, 3)
    assert sum(dump.counts.files_left_out.values()) == 2


def test_what_would_be_a_guess_is_asked(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", row())
    lines(tmp_path / "b.jsonl", {"input": QUESTION, "output": "5", "score": 0.0, "gts": "42"})
    with pytest.raises(ConfigError, match=r"rollouts of plain \(.*a\.jsonl\) and verl \(.*b\.jsonl\)\. Name the files"):
        read(tmp_path)
    assert len(list(Dump([tmp_path], "verl"))) == 1
    rewards = {"math": [None, 1.0], "code": [0.5, None]}
    table = {"step": [1, 1], "prompt": ["p"] * 2, "completion": ["a", "b"], **rewards, "advantage": [0.0, 0.0]}
    pq.write_table(pa.table(table), tmp_path / "completions_00001.parquet")
    with pytest.raises(ConfigError, match=r"several columns of numbers \(math, code\)\. Choose one"):
        read(tmp_path / "completions_00001.parquet")
    [(_, [found])], dump = read(tmp_path / "completions_00001.parquet", reward="code")
    assert (found.reward, dump.counts.left_out) == (0.5, {"without code": 1})


def test_a_file_that_ends_in_the_middle_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    import gzip

    whole = gzip.compress("".join(json.dumps(row(str(n), step=n)) + "\n" for n in range(1, 9_000)).encode(), 1)
    (tmp_path / "rows.jsonl.gz").write_bytes(whole)
    assert len(read(tmp_path)[0]) == 8_999
    (tmp_path / "rows.jsonl.gz").write_bytes(whole[:-4_000])
    found, dump = read(tmp_path)
    assert 0 < len(found) < 8_999
    [reason] = dump.counts.files_left_out
    assert reason.startswith("not read to their end (EOFError: ")


def test_lists_of_objects_and_ranks(tmp_path: Path) -> None:
    (tmp_path / "rank_0").mkdir()
    (tmp_path / "rank_0/rows.json").write_text(json.dumps([row("1", step=1), row("2", step=2)], indent=1))
    assert [step for step, _ in read(tmp_path)[0]] == [1, 2]
    lines(tmp_path / "rank_1/rows.jsonl", row("3", step=2))
    with pytest.raises(ConfigError, match=r"rank_1: has step 2, which .*rank_0 also has\. If these are two runs"):
        read(tmp_path)


def test_links_are_read_once_and_named_columns_have_to_be_there(tmp_path: Path) -> None:
    file = lines(tmp_path / "step_1.jsonl", row("1", note="n"), row("2"))
    (tmp_path / "latest.jsonl").symlink_to(file)
    [(_, found)], dump = read(tmp_path)
    assert (len(found), dump.counts.files) == (2, 1)
    for role in ("step", "truth", "answer"):
        with pytest.raises(ConfigError, match=rf"--columns={role}=nope: no line has this column; there are prompt, "):
            read(tmp_path, **{role: "nope"})
    assert read(tmp_path, truth="note")[0][0][1][0].truth == "n"


def test_lines_without_a_step_among_others_are_left_out(tmp_path: Path) -> None:
    lines(tmp_path / "rows.jsonl", row("1"), row("2", step=5), row("3", step=6))
    found, dump = read(tmp_path)
    assert [step for step, _ in found] == [5, 6]
    assert (dump.counts.rollouts, dump.counts.left_out) == (2, {"without a step": 1})


def test_a_file_of_slime_has_the_step_of_its_samples(tmp_path: Path) -> None:
    for number in (5, 10):
        save(tmp_path / f"{number}.pt", {"rollout_id": number, "samples": [sample(rollout_id=n) for n in (None, 7)]})
    assert [(step, len(rollouts)) for step, rollouts in read(tmp_path)[0]] == [(5, 2), (10, 2)]
