"""Dumps of several files: their order, what is left out, and what is refused."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.dumps import reading
from meds_openrlhf.dumps.reading import Dump


def write(path: Path, *rows: dict | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def row(response: str, **more: object) -> dict:
    return {"prompt": "2+2", "response": response, "reward": 0, **more}


def steps(*files: Path) -> list[tuple[int, list[str]]]:
    return [(step, [one.response for one in rollouts]) for step, rollouts in Dump(files)]


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({f"step_{step}.jsonl": str(step) for step in (10, 9, 2)}, [(2, ["2"]), (9, ["9"]), (10, ["10"])]),
        ({f"{task}.jsonl": str(task) for task in (10, 9)}, [(1, ["9"]), (2, ["10"])]),  # a number may be anything
        ({f"rank{rank}-step_3.jsonl": str(rank) for rank in (0, 1)}, [(3, ["0", "1"])]),
        # Folders counted from zero, with evaluations beside.
        (
            {f"step_{n}/{kind}_rollouts.jsonl": f"{n}" for kind in ("train", "eval") for n in (0, 1)},
            [(1, ["0"]), (2, ["1"])],
        ),
    ],
)
def test_names_of_files_say_their_steps(tmp_path: Path, files: dict, found: list) -> None:
    for name, response in files.items():
        write(tmp_path / name, row(response))
    assert steps(tmp_path) == found


def test_without_steps_portions_are_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PORTION", 2)
    files = write(tmp_path / "gsm8k.jsonl", row("a"), row("b"), row("c")), write(tmp_path / "math.jsonl", row("d"))
    assert steps(*files) == [(1, ["a", "b"]), (2, ["c"]), (3, ["d"])]


def test_two_runs_are_refused_and_steps_are_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for run in ("a", "b"):
        write(tmp_path / run / "1.jsonl", row(run, step=1))
    with pytest.raises(ConfigError, match=r"has step 1, which .*a also has. If these are two runs, make"):
        steps(tmp_path)
    file = write(tmp_path / "a.jsonl", row("a", step=1), row("b", step=4), row("c", step=3))
    assert steps(file) == [(1, ["a"]), (3, ["c"]), (4, ["b"])]
    monkeypatch.setattr(reading, "MOST_SORTED", 10)
    with pytest.raises(ConfigError, match=r"has step 3 after step 4 of .*Sort the lines"):
        steps(file)


def test_lines_that_are_no_rollouts_are_counted_with_their_first_place(tmp_path: Path) -> None:
    right = row("a", model="m")
    file = write(tmp_path / "a.jsonl", right, "{broken", "[1]", "", row("b", reward=None), "more", row("c", model="n"))
    dump = Dump([file])
    assert [one.response for _, rollouts in dump for one in rollouts] == ["a"]
    assert dump.counts.rollouts == 1
    reasons = {"without a JSON object": 3, "without reward": 1, "of the model n, not of m": 1}
    assert dump.counts.left_out == reasons
    assert dump.counts.examples["without a JSON object"] == f"{file}, line 2"
    nodes = [
        {"parent": None, "sampled": False, "message": {"role": "user", "content": "2+2"}},
        {"parent": 0, "sampled": True, "message": {"role": "assistant", "content": "a"}},
    ]
    traces = (
        {"nodes": [], "errors": ["timeout"]},
        {"nodes": nodes, "rewards": {"right": 0.0}},
    )  # the first does not decide
    dump = Dump([write(tmp_path / "traces.jsonl", *traces)])
    assert [one.response for _, rollouts in dump for one in rollouts] == ["a"]
    assert (dump.format_name, dump.counts.left_out) == ("prime-rl", {"of a rollout that failed": 1})


@pytest.mark.parametrize(
    ("name", "problem"),
    [("none.jsonl", "does not exist"), ("a.txt", r"must end in \.jsonl"), ("empty", "has no dump in it")],
)
def test_what_holds_no_dump_is_refused(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=problem):
        Dump([tmp_path / name])


def test_parquet(tmp_path: Path) -> None:
    rows = {"step": [3, 3], "prompt": ["p", "p"], "completion": ["a", "b"], "f": [0.0, 1.0]}
    pq.write_table(pa.table({**rows, "advantage": [1.0, -1.0]}), tmp_path / "completions_00003.parquet")
    assert steps(tmp_path) == [(3, ["a", "b"])]
    (tmp_path / "completions_00004.parquet").write_text("no parquet")
    with pytest.raises(ConfigError, match=r"completions_00004\.parquet: cannot be read \(ArrowInvalid: "):
        steps(tmp_path / "completions_00004.parquet")
    assert steps(tmp_path) == [(3, ["a", "b"])]


def test_a_generation_that_trl_logs_again_counts_once(tmp_path: Path) -> None:
    for step, texts in ((1, "ab"), (2, "ab"), (3, "ac")):
        rows = {"step": [step] * 2, "prompt": ["p"] * 2, "completion": list(texts), "f": [0.0] * 2}
        pq.write_table(pa.table({**rows, "advantage": [0.0] * 2}), tmp_path / f"completions_{step:05d}.parquet")
    dump = Dump([tmp_path])
    assert [(step, len(rollouts)) for step, rollouts in dump] == [(1, 2), (3, 2)]
    assert dump.counts.rollouts == 4
    assert dump.counts.left_out == {"of a repeated step": 2}
