"""The files that training and evaluation read."""

import json
from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.data.catalog import CATALOG
from meds_openrlhf.data.prepare import prepare
from meds_openrlhf.data.sources import Source
from meds_openrlhf.data.templates import qwen_math_prompt


def source(folder: Path, name: str, records: list[dict[str, Any]]) -> Source:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return Source(CATALOG[name], path)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    dapo = [{"prompt": question, "reward_model": {"ground_truth": "1"}} for question in ("a", "b", "Tested?") * 3]
    math = [("$b$", 5, 1), ("c\u2028é", 4, 2), ("d", 1, 2)]
    records = {
        "dapo-math-17k": dapo,
        "aime24": [{"problem": "tested ?", "answer": "033"}],
        "math": [{"problem": q, "level": f"Level {level}", "solution": f"\\boxed{{{a}}}"} for q, level, a in math],
        "math500": [{"problem": "e", "answer": "\\pi", "level": 2}],
    }
    return [source(tmp_path, name, rows) for name, rows in records.items()]


def test_training_sets_make_one_file_and_benchmarks_one_each(sources: list[Source], tmp_path: Path) -> None:
    out, again = tmp_path / "new" / "data", tmp_path / "again"
    prepared = prepare(sources, out)
    assert [file.path(out).name for file in prepared] == ["train.jsonl", "aime24.jsonl", "math500.jsonl"]
    names = [f"{name}.{end}" for name in ("aime24", "math500", "train") for end in ("counts.json", "jsonl")]
    assert sorted(path.name for path in out.iterdir()) == names
    train = lines_of(out / "train.jsonl")
    assert [(row["question"], row["answer"], row["datasource"], row["level"]) for row in train] == [
        ("a", "1", "dapo-math-17k", ""),
        ("b", "1", "dapo-math-17k", ""),
        ("c\u2028é", "2", "math", "4"),
    ]
    assert all(isinstance(value, str) for row in train for value in row.values())  # so that files load together
    row = {"id": "aime24-010006b77286", "question": "tested ?", "answer": "033", "datasource": "aime24", "level": ""}
    assert lines_of(out / "aime24.jsonl") == [{**row, "prompt": qwen_math_prompt("tested ?")}]
    dapo = {"read": 9, "kept": 2, "dropped": {"duplicate": 6, "in a benchmark": 1}}
    math = {"read": 3, "kept": 1, "dropped": {"level": 1, "duplicate": 1}}
    sets = {"dapo-math-17k": dapo, "math": math}
    sets = {name: {"source": str(tmp_path / f"{name}.jsonl"), **counts} for name, counts in sets.items()}
    counts = json.loads((out / "train.counts.json").read_text())
    assert counts == {"file": "train.jsonl", "problems": 3, "sets": sets}
    prepare(sources, again)
    assert all(path.read_bytes() == (again / path.name).read_bytes() for path in out.iterdir())


def test_a_set_that_fails_leaves_the_files_as_they_were(sources: list[Source], tmp_path: Path) -> None:
    out = tmp_path / "data"
    prepare(sources, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    bad = source(tmp_path, "amc23", [{"question": "q", "answer": ""}] * 2)
    with pytest.raises(ConfigError, match="none of its 2 rows can be used: no answer 2"):
        prepare([*sources[:1], bad], out)
    train = source(tmp_path, "dapo-math-17k", [{"prompt": "q", "answer": "1"}])
    test = source(tmp_path, "amc23", [{"question": "Q", "answer": "1"}])
    with pytest.raises(ConfigError, match=r"none of its 1 rows can be used: in a benchmark 1"):
        prepare([train, test], out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_training_file_that_was_not_compared_with_a_benchmark_is_noted(sources: list[Source], tmp_path: Path) -> None:
    lines: list[str] = []
    repeated = source(tmp_path, "math", [{"problem": "B", "level": "Level 3", "solution": "\\boxed{1}"}])
    (train,) = prepare([sources[0], repeated], tmp_path / "data", lines.append)
    assert train.counts["math"].dropped == {"duplicate": 1}  # a set that an earlier one holds already is no mistake
    prepare([sources[1], sources[3]], tmp_path / "data", lines.append)
    notes = [line for line in lines if line.startswith("note")]
    assert notes == [
        f"note: {tmp_path}/data/train.jsonl was not compared with aime24, math500. Prepare both in one call."
    ]


@pytest.mark.parametrize("out", ["file", "file/x"])
def test_a_folder_that_cannot_be_written_to_is_said_first(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    lines: list[str] = []
    with pytest.raises(ConfigError, match=r"--out=.*: is not writable, because file is not\. Name another folder"):
        prepare([Source(CATALOG["math"], Path("none.jsonl"))], Path(out), lines.append)
    assert not lines
