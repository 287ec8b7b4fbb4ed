"""`meds data prepare`, as it is typed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf.data.catalog import CATALOG
from tests.cli.conftest import Meds

DAPO = [{"prompt": f"{number % 3}?", "reward_model": {"ground_truth": str(number % 3)}} for number in range(9)]
MATH = [
    {"problem": "0 ?", "level": "Level 5", "solution": "\\boxed{0}"},
    {"problem": "easy", "level": "Level 2", "solution": "\\boxed{1}"},
    {"problem": "hard", "level": "Level 4", "solution": "\\boxed{2}"},
]


@pytest.fixture(autouse=True)
def _files(meds: Meds) -> None:
    for name, records in {"dapo": DAPO, "math": MATH, "amc": [{"question": "1?", "answer": 1.0}]}.items():
        write(Path(f"{name}.jsonl"), records)


def write(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_counts_and_files_are_printed(meds: Meds) -> None:
    files = ["--from", "dapo-math-17k=dapo.jsonl", "--from", "math=math.jsonl", "--from", "amc23=amc.jsonl"]
    assert meds.output("data", "prepare", "dapo-math-17k", "math", "amc23", *files) == (
        "reading amc23 from amc.jsonl\n"
        "reading dapo-math-17k from dapo.jsonl\n"
        "reading math from math.jsonl\n"
        "\n"
        "set            read  kept  in the paper  dropped\n"
        "dapo-math-17k     9     2           17k  duplicate 6, in a benchmark 1\n"
        "math              3     1             -  duplicate 1, level 1\n"
        "amc23             1     1            40  -\n"
        "\n"
        "1 training question dropped for being in amc23\n"
        "3 problems in data/train.jsonl\n"
        "1 problem in data/amc23.jsonl\n"
    )
    assert len(Path("data/train.jsonl").read_text().splitlines()) == 3


def test_a_set_of_ones_own_and_levels(meds: Meds) -> None:
    meds.output("data", "prepare", "mine", "--from", "mine=dapo.jsonl")
    rows = [json.loads(line) for line in Path("data/train.jsonl").read_text().splitlines()]
    assert {row["datasource"] for row in rows} == {"mine"}
    meds.output("data", "prepare", "math", "--from=math=math.jsonl", "--levels", "2", "4", "--out", "levels")
    kept = [json.loads(line)["question"] for line in Path("levels/train.jsonl").read_text().splitlines()]
    assert kept == ["easy", "hard"]
    with pytest.raises(SystemExit, match="2"):  # math has no such level
        meds("data", "prepare", "math", "--from=math=math.jsonl", "--levels", "9")
    # What was prepared can be prepared again.
    meds.output("data", "prepare", "mine", "--from", "mine=data/train.jsonl", "--out", "again")
    assert Path("again/train.jsonl").read_bytes() == Path("data/train.jsonl").read_bytes()


def test_what_cannot_be_an_answer_is_counted_and_other_columns_are_named(meds: Meds) -> None:
    worked = [{"question": "6+12?", "answer": "6+12=18\n#### 18"}, {"question": "1k+250?", "answer": "#### 1,250"}]
    none = ["proof", "notfound", None, {"value": "2"}, "First this.\nThen that.", "2"]
    write(Path("worked.jsonl"), [*worked, *({"question": f"q{n}", "answer": answer} for n, answer in enumerate(none))])
    printed = meds.output("data", "prepare", "mine", "--from", "mine=worked.jsonl")
    assert "mine     8     3             -  no answer 5\n" in printed
    rows = [json.loads(line) for line in Path("data/train.jsonl").read_text().splitlines()]
    assert [row["answer"] for row in rows] == ["18", "1250", "2"]
    asked = 'How many? Output the final answer after "####".'
    nested = {"prompt": [{"role": "user", "content": asked}], "extra": {"text": "How many?"}, "expected_answer": "7"}
    write(Path("nested.jsonl"), [nested])
    named = ["data", "prepare", "mine", "--from", "mine=nested.jsonl", "--columns", "answer=expected_answer"]
    assert "has no column for the answer (answer, final_answer, " in meds.refusal(*named[:-2])
    assert "of its 1 rows can be used: answer format 1. docs/data.md explains" in meds.refusal(*named)
    meds.output(*named, "question=extra.text")
    (row,) = map(json.loads, Path("data/train.jsonl").read_text().splitlines())
    assert (row["question"], row["answer"]) == ("How many?", "7")


@pytest.mark.needs("math_verify")
def test_answers_beyond_comparison_are_noted_or_refused(meds: Meds) -> None:
    def rows(count: int) -> list[dict[str, Any]]:
        return [{"question": f"q{n}", "answer": "1 2" if n == 1 else str(n)} for n in range(count)]

    write(Path("some.jsonl"), rows(50))
    fault = "some.jsonl: 1 of 50 answers cannot be compared, e.g. '1 2' of mine-"
    assert fault in meds.refusal("data", "prepare", "mine", "--from=mine=some.jsonl")
    assert not Path("data").exists()
    note = "1 of 50 answers cannot be compared, e.g. '1 2' of amc23-"
    assert f"note: amc23: {note}" in meds.output("data", "prepare", "amc23", "--from=amc23=some.jsonl")
    write(Path("some.jsonl"), rows(200))
    printed = meds.output("data", "prepare", "mine", "--from=mine=some.jsonl")
    assert "note: mine: 1 of 200 answers cannot be compared, e.g. '1 2' of mine-" in printed


def test_a_set_that_has_changed_is_noted(meds: Meds, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", Path("cache").absolute())
    Path("hub/amc23").mkdir(parents=True)
    write(Path("hub/amc23/test.jsonl"), [{"question": "1?", "answer": 1.0}])
    monkeypatch.setitem(CATALOG, "amc23", replace(CATALOG["amc23"], hub="hub/amc23"))  # a name that is a local folder
    assert "note: hub/amc23 has 1 row instead of 40; results may differ\n" in meds.output("data", "prepare", "amc23")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("amc", "SET=amc: "),
        ("amc23 --from amc23=none.jsonl", "--from=none.jsonl: "),
        ("amc23 --from amc.jsonl", "--from=amc.jsonl: must be SET=FILE, with a different SET each time."),
        ("amc23 --from=amc23=a --from=amc23=b", "--from=amc23=b: must be SET=FILE, with a different SET"),
        *[(f"amc23 --from=amc23=amc.jsonl --out {out}", f"--out={out}: ") for out in ("amc.jsonl", "amc.jsonl/a/b")],
        ("amc23 --from=amc23=amc.jsonl --out /proc/x", "--out=/proc/x: "),
        ("amc23 --from=amc23=amc.jsonl --levels 3", "--levels=3: applies only to math, which is not among"),
        ("math --from=math=amc.jsonl", "level"),
        ("amc23 --from=amc23=amc.jsonl --columns reply=a", "--columns=reply=a: the role must be one of question, answ"),
        ("amc23 --columns answer=a", "--columns=answer=a: applies only with --from."),
        (
            "amc23 --from=amc23=amc.jsonl --columns answer=a",
            "has no column for the answer (a). It has question, answer",
        ),
        ("gym:chain_sum --columns answer=a", "--columns=['answer=a']: does not apply to gym:TASK."),
        ("amc23 --held-out 3", "--held-out=3: applies only to gym:TASK. Leave it out."),
        ("gym:chain_sum --levels 3", "--levels=['3']: does not apply to gym:TASK. Leave it out."),
        ("gym:chain_sum amc23", "SET=amc23: cannot be combined with gym:TASK. Prepare it in another call."),
        ("gym:chain_sum --set a", "--set=a: must be KEY=VALUE, with a different KEY each time."),
        ("gym:chain_sum --set a=2026-01-01", "--set=a=2026-01-01: is not a JSON value (Object of type date"),
    ],
)
def test_mistakes_are_one_line(words: str, message: str, meds: Meds) -> None:
    assert message in meds.refusal("data", "prepare", *words.split())
    assert not Path("data").exists()
