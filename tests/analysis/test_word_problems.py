"""Word problems with known mistakes, and whether themes find these."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from analysis.word_problems import STYLES, main, rollouts
from meds_openrlhf.cli.main import main as meds
from meds_openrlhf.rewards.grading import is_right

EXAMPLE = Path(__file__).parents[2] / "examples" / "word_problems"


@pytest.mark.parametrize("style", STYLES)
def test_right_responses_are_right_and_wrong_ones_are_wrong(style: str) -> None:
    lines = list(rollouts(style, steps=1))
    assert lines == list(rollouts(style, steps=1))
    assert [is_right(line["response"], line["ground_truth"]) for line in lines] == [
        line["reward"] == 1 for line in lines
    ]
    kinds, answers = defaultdict(set), defaultdict(set)
    for line in lines:
        kinds[line["mistake"]].add(line["prompt"])
        answers[line["prompt"], line["mistake"]].add(line["response"].rpartition("boxed{")[2].partition("}")[0])
    assert len(kinds) >= 9  # with the right ones
    assert min(map(len, kinds.values())) > 1
    assert all(len(same) == 1 for same in answers.values())  # a mistake gives the same answer each time


def test_themes_find_the_kinds_of_mistakes_in_all_styles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = tmp_path / "numbers.json"
    assert main(["--out", str(tmp_path), "--json", str(numbers)]) == 0
    assert "| latex " in capsys.readouterr().out
    scores = json.loads(numbers.read_text())["scores"]
    for style, least in (("short", 0.8), ("scratch", 0.8), ("latex", 0.7)):
        assert scores[style]["adjusted Rand"] >= least
        assert scores[style]["wrong in a theme"] >= 0.8


def test_the_example_names_mistakes_in_words(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    assert meds(["report", str(EXAMPLE), "--out", str(tmp_path / "page.html"), "--json", str(out)]) == 0
    names = [theme["name"] for theme in json.loads(out.read_text())["themes"]]
    assert "adds instead of multiplying: given + given = wrong" in names
    assert "multiplies instead of dividing: given * given = wrong" in names
