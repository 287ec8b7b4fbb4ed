"""Which problem sets an evaluation is over."""

from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.evaluation.benchmarks import find_benchmarks


def make(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"id": "1", "prompt": "2+2", "answer": "4"}\n')
    return path


def test_names_commas_and_files(tmp_path: Path) -> None:
    make(tmp_path / "aime24.jsonl")
    make(tmp_path / "amc23.jsonl")
    own = make(tmp_path / "own" / "mine.jsonl")
    found = find_benchmarks(["aime24,amc23", str(own)], tmp_path)
    assert [one.name for one in found] == ["aime24", "amc23", "mine"]
    assert found[0].problems[0].answer == "4"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["aime24"], "is not at {tmp}/aime24.jsonl. Make it with `meds data prepare aime24`."),
        (["aime25"], "is not at {tmp}/aime25.jsonl. Name a .jsonl file, or one of aime24, amc23, math500"),
        (["{tmp}/aime24.json"], "does not exist (looked in"),
        (["{tmp}/x/own.json"], "is neither a .jsonl file nor in {tmp}. Did you mean {tmp}/x/own.jsonl?"),
        (["{tmp}/x/own"], "is neither a .jsonl file nor in {tmp}. Did you mean {tmp}/x/own.jsonl?"),
        (["some/where.jsonl"], "does not exist (looked in"),
        ([","], "names no benchmark. Choose from aime24"),
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
