"""What a label's samples were drawn with is never mixed."""

from dataclasses import replace
from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.evaluation.problems import Problem
from meds_openrlhf.evaluation.settings import Settings, check_settings, problems_hash, read_settings, write_settings

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
