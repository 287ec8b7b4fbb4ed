"""What an evaluation is asked for: problem sets, every way in which they can be wrong, and settings, never mixed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.evaluation.request import (
    Problem,
    Settings,
    check_settings,
    find_benchmarks,
    problems_hash,
    read_problems,
    read_settings,
    write_settings,
)

LINE = {"id": "a-1", "prompt": "<user>1 + 1?", "question": "1 + 1?", "answer": "2", "datasource": "aime24", "level": ""}


def _file(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "aime24.jsonl"
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    path.write_bytes(text.encode(errors="surrogateescape"))
    return path


def test_problems_come_in_the_files_order(tmp_path: Path) -> None:
    path = _file(tmp_path, LINE, {**LINE, "id": "a-0", "answer": r"\frac{1}{2}"})
    assert read_problems(path) == [
        Problem("a-1", "<user>1 + 1?", "2"),
        Problem("a-0", "<user>1 + 1?", r"\frac{1}{2}"),
    ]


@pytest.mark.parametrize("written", ["33", "-0.10", "2.5e3", "123456789012345678901234567890.25"])
def test_numbers_become_texts_as_they_are_written(tmp_path: Path, written: str) -> None:
    path = _file(tmp_path, f'{{"id": "a", "prompt": "p", "answer": {written}}}')
    assert read_problems(path)[0].answer == written


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([LINE, "{"], r"--benchmarks=.*aime24.jsonl, line 2: is not JSON"),
        (['{"id": "a", "prompt": "\udcff", "answer": "2"}'], r"line 1: is not JSON"),
        (['{"id": "a", "prompt": "p", "answer": NaN}'], r"line 1: has NaN in the field 'answer'"),
        (["[1]"], r"line 1: is not a JSON object"),
        ([LINE, {"id": "b", "prompt": "p"}], r"line 2: has no field 'answer'; it has id, prompt. Make the file with"),
        ([{**LINE, "answer": None}], r"line 1: has null in the field 'answer'"),
        ([{**LINE, "prompt": " "}], r"line 1: has \" \" in the field 'prompt'"),
        ([LINE, {**LINE, "id": "b"}, LINE], r"aime24.jsonl: has the id 'a-1' twice, in lines 1 and 3"),
        ([], r"--benchmarks=.*aime24.jsonl: contains no problems"),
        (
            [LINE, {**LINE, "id": "b", "answer": '{"reasoning_gym": "ab", "entry": {}}'}],
            "line 2: a label con",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, lines: list[object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_problems(_file(tmp_path, *lines))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--benchmarks=.*none.jsonl: cannot be read: No such file"):
        read_problems(tmp_path / "none.jsonl")


def make(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"id": "1", "prompt": "2+2", "answer": "4"}\n')
    return path


def test_names_and_files(tmp_path: Path) -> None:
    make(tmp_path / "aime24.jsonl")
    make(tmp_path / "amc23.jsonl")
    own = make(tmp_path / "own" / "mine.jsonl")
    found = find_benchmarks(["aime24", "amc23", str(own)], tmp_path)
    assert list(found) == ["aime24", "amc23", "mine"]
    assert found["aime24"][0].answer == "4"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["aime24"], "is not at {tmp}/aime24.jsonl. Make it with `meds data prepare aime24`."),
        (["aime25"], "is not at {tmp}/aime25.jsonl. Name a .jsonl file, or one of aime24, amc23, math500"),
        (["some/where.jsonl"], "is not at some/where.jsonl. Name a .jsonl file"),
        (["{tmp}/x/own.jsonl", "{tmp}/y/own.jsonl"], "occurs twice"),
        (["{tmp}/a b.jsonl"], "becomes a file name of results"),
    ],
)
def test_what_is_no_benchmark(words: list[str], message: str, tmp_path: Path) -> None:
    for name in ("x/own.jsonl", "y/own.jsonl", "a b.jsonl"):
        make(tmp_path / name)
    with pytest.raises(ConfigError) as error:
        find_benchmarks([word.format(tmp=tmp_path) for word in words], tmp_path)
    assert error.value.field == "--benchmarks"
    assert message.format(tmp=tmp_path) in str(error.value)


SETTINGS = Settings("runs/a/model", "f00d", 1.0, 1.0, 0, 7168, {"aime24": "aa"})


def test_the_same_again_and_another_benchmark(tmp_path: Path) -> None:
    assert read_settings(tmp_path) is None
    assert check_settings(tmp_path, SETTINGS) == SETTINGS
    write_settings(tmp_path, SETTINGS)
    assert read_settings(tmp_path) == SETTINGS
    check_settings(tmp_path, replace(SETTINGS, model="the same, elsewhere"))
    more = check_settings(tmp_path, replace(SETTINGS, benchmarks={"amc23": "bb"}))
    assert more.benchmarks == {"aime24": "aa", "amc23": "bb"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.6}, "--temperature=0.6: does not fit the samples in {folder}, drawn with 1.0. Name"),
        ({"top_p": 0.9}, "--top-p=0.9: does not fit"),
        ({"seed": 1}, "--seed=1: does not fit"),
        ({"max_tokens": 3072}, "--max-tokens=3072: does not fit"),
        ({"answer_pattern": "= (.*)"}, "--answer-pattern== (.*): does not fit"),
        ({"fingerprint": "beef", "model": "runs/b"}, "MODEL=runs/b: does not fit the samples in {folder}, drawn"),
        ({"fingerprint": "beef"}, "MODEL=runs/a/model: does not fit the samples in {folder}, drawn with other weights"),
        ({"benchmarks": {"aime24": "cc"}}, "--benchmarks=aime24: does not fit"),
    ],
)
def test_other_settings_are_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    write_settings(tmp_path, SETTINGS)
    with pytest.raises(ConfigError) as error:
        check_settings(tmp_path, replace(SETTINGS, **change))  # type: ignore[arg-type]
    assert str(error.value).startswith(message.format(folder=tmp_path))


def test_a_file_that_is_something_else(tmp_path: Path) -> None:
    for content in ("{", "[]", '{"model": 1}'):
        (tmp_path / "settings.json").write_text(content)
        with pytest.raises(ConfigError, match="cannot be read"):
            read_settings(tmp_path)


def test_settings_outside_of_the_folder_are_not_read(tmp_path: Path) -> None:
    write_settings(tmp_path / "elsewhere", SETTINGS)
    (tmp_path / "label").mkdir()
    (tmp_path / "label" / "settings.json").symlink_to(tmp_path / "elsewhere" / "settings.json")
    with pytest.raises(ConfigError, match=r"--out=.*: leads out of the folder"):
        read_settings(tmp_path / "label")


def test_problems_are_told_apart_by_their_content() -> None:
    problem = Problem("1", "2+2", "4")
    assert problems_hash([problem]) == problems_hash([Problem("1", "2+2", "4")])
    others = [replace(problem, id="2"), replace(problem, prompt="2+3"), replace(problem, answer="5")]
    assert len({problems_hash([one]) for one in [problem, *others]}) == 4


def test_what_can_be_compared() -> None:
    assert SETTINGS.difference(replace(SETTINGS, model="b", fingerprint="beef", seed=1)) is None
    assert SETTINGS.difference(replace(SETTINGS, temperature=0.6)) == "temperature 0.6"
    assert SETTINGS.difference(replace(SETTINGS, answer_pattern="= (.*)")) == "answer_pattern '= (.*)'"
    assert replace(SETTINGS, answer_pattern="= (.*)").difference(SETTINGS) == "answer_pattern None"
    assert SETTINGS.difference(replace(SETTINGS, benchmarks={"amc23": "bb"})) is None
    assert SETTINGS.difference(replace(SETTINGS, benchmarks={"aime24": "cc"})) == "other problems of aime24"
