"""Which sets and rows become problems, that none of the others goes uncounted, and the files that training reads."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.config import ConfigError
from meds_openrlhf.data.catalog import CATALOG, DataSet, find_sets
from meds_openrlhf.data.prepare import Selection, prepare
from meds_openrlhf.data.questions import normalized, qwen_math_prompt
from meds_openrlhf.data.sources import Row, Source


def test_no_name_asks_for_those_of_the_paper() -> None:
    names = [each.name for each in find_sets([], [])]
    assert names == ["dapo-math-17k", "math-3to5", "aime24", "amc23", "math500", "minerva", "olympiadbench"]
    assert all(CATALOG[name].paper for name in names)
    given = ["math", "aime24", "dapo-math-17k"]  # names keep their order
    assert [each.name for each in find_sets([*given, "math"], ["aime24"])] == given
    (own,) = find_sets(["my-problems"], ["my-problems"])
    assert (own.kind, own.hub, own.levels) == ("training", None, ())


@pytest.mark.parametrize(
    ("names", "files", "message"),
    [
        (["aime2"], [], "SET=aime2: is not a known set. Did you mean aime24[?] .*--from aime2=FILE"),
        (["xyzzy"], [], "SET=xyzzy: is not a known set. Choose one of dapo-math-17k, math-3to5, math, "),
        (["math"], ["amc23"], "--from=amc23: is not among the sets to prepare .math.. Add it as a SET"),
        ([], ["mine"], "--from=mine: is not among the sets to prepare"),
    ],
)
def test_what_does_not_fit_is_refused(names: list[str], files: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_sets(names, files)


DAPO, MATH = CATALOG["dapo-math-17k"], CATALOG["math"]

QUESTIONS = ["a?", "A ?", "b?", "$c$?", "c?", "d<|im_end|>", "put your answer on its own line", None]
FIELDS = {"question": QUESTIONS, "answer": ["1", "2", None], "level": ["", "2", "3"]}
ROWS = st.lists(st.builds(Row, **{name: st.sampled_from(values) for name, values in FIELDS.items()}), max_size=12)


def selected(dataset: DataSet, rows: list[Row], held_out: set[str] | None = None) -> tuple[list[str], Counter[str]]:
    selection = Selection(held_out or set())
    selection.add(dataset, rows)
    return [problem.question for problem in selection.finish()], selection.counts[dataset.name].dropped


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (Row(None, "1", "3"), "no question"),
        (Row("q", None, "3"), "no answer"),
        (Row("q. Put your answer on its own line.", "1", "3"), "answer format"),
        (Row("q<|im_end|>", "1", "3"), "chat marker"),
        (Row("q", "1", "2"), "level"),
    ],
)
def test_rows_that_make_no_problem(row: Row, reason: str) -> None:
    assert selected(MATH, [row, Row("kept", "1", "3")]) == (["kept"], Counter({reason: 1}))


def test_equal_questions_keep_the_first_unless_they_conflict() -> None:
    rows = [Row("What is $1 + 1$?", "2", ""), Row("what is 1+1?", "$ 2$", ""), Row("What is $1 + 1$?", "2", "")]
    assert selected(DAPO, rows) == (["What is $1 + 1$?"], Counter({"duplicate": 2}))
    rows = [Row("a", "1", ""), Row("b", "1", ""), Row("A", "2", ""), Row("a", "1", "")]
    assert selected(DAPO, rows) == (["b"], Counter({"duplicate": 2, "conflicting answers": 1}))
    rows = [Row("$a$", "1", ""), Row("b", "1", ""), Row("$a$", "2", "")]
    assert selected(DAPO, rows, {normalized("a")}) == (["b"], Counter({"duplicate": 1, "in a benchmark": 1}))


def test_across_sets_the_first_named_wins_and_each_counts_its_own_rows() -> None:
    selection = Selection()
    selection.add(DAPO, [Row("a", "1", ""), Row("b", "2", "")])
    selection.add(MATH, [Row("A", "1", "3"), Row("c", "3", "5"), Row("b", "two", "4")])
    problems = selection.finish()
    found = [(problem.question, problem.datasource, problem.level) for problem in problems]
    assert found == [("a", "dapo-math-17k", ""), ("c", "math", "5")]
    assert selection.counts["dapo-math-17k"].dropped == Counter({"conflicting answers": 1})
    assert selection.counts["math"].dropped == Counter({"duplicate": 2})
    assert [counts.kept for counts in selection.counts.values()] == [1, 1]
    assert problems[0].prompt == qwen_math_prompt("a")
    assert problems[0].id == "dapo-math-17k-ca978112ca1b"  # of sha256("a")


@given(ROWS, ROWS, st.sets(st.sampled_from(["a?", "c?"])))
def test_every_row_is_accounted_for(first: list[Row], second: list[Row], held_out: set[str]) -> None:
    selection = Selection(held_out)
    selection.add(DAPO, first)
    selection.add(MATH, second)
    problems = selection.finish()
    for name, rows in (("dapo-math-17k", first), ("math", second)):
        counts = selection.counts[name]
        assert counts.read == len(rows) == counts.kept + sum(counts.dropped.values())
        assert counts.kept == sum(problem.datasource == name for problem in problems)
    questions = [normalized(problem.question) for problem in problems]
    assert len({problem.id for problem in problems}) == len(set(questions)) == len(problems)
    assert not held_out.intersection(questions)


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


@pytest.mark.needs("math_verify")
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
