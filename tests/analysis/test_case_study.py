"""The case study: which prompt is shown, and what the table and the figure say about it."""

from pathlib import Path

import numpy as np
import pytest

from analysis.case_study import COLUMNS, Case, chosen_case, draw, main, patterns_of, table_of
from meds_openrlhf.rollouts.features import FEATURES, labels_of_feature, wrong_rows
from tests.analysis.runs import Rollout, kind, write_run

# Two rollouts a step. plain: two answers, two kinds. split: one answer of two kinds. both: that, and 6 beside 5.
PATTERNS = {
    "plain": [("1", 1), ("2", 2)],
    "split": [("3", 3), ("3", 4)],
    "both": [("5", 5), ("5", 6), ("6", 5)],
}


def write(root: Path, *prompts: str, steps: int = 3) -> Path:
    made = [
        [Rollout(p, answer, logits=kind(one)) for p in prompts for answer, one in PATTERNS[p]] for _ in range(steps)
    ]
    return write_run(root, made)


def chosen(run: Path) -> Case:
    wrong = wrong_rows(run, COLUMNS)
    return chosen_case(wrong, labels_of_feature(wrong, FEATURES["last-half"], "paper"), None)


def test_the_prompt_with_the_most_telling_pattern_is_shown(tmp_path: Path) -> None:
    assert chosen(write(tmp_path / "three", "plain", "split", "both")).prompt == "both"
    assert chosen(write(tmp_path / "two", "plain", "split")).prompt == "split"
    assert chosen(write(tmp_path / "one", "plain")).prompt == "plain"


def test_rows_are_sorted_by_cluster_and_noise_is_last(tmp_path: Path) -> None:
    steps = [[Rollout("p", "9", logits=kind(9))], *[[Rollout("p", "b", logits=kind(1))]] * 2]
    steps += [[Rollout("p", "c", logits=kind(2)), Rollout("p", "a", logits=kind(2))]] * 2
    wrong = wrong_rows(write_run(tmp_path, steps), COLUMNS)
    case = chosen_case(wrong, np.array([-1, 7, 7, 4, 4, 4, 4]), "p")
    assert case.clusters.tolist() == [0, 0, 0, 0, 1, 1, -1]
    assert case.answers == ["a", "a", "c", "c", "b", "b", "9"]
    assert case.steps.tolist() == [4, 5, 4, 5, 2, 3, 1]
    np.testing.assert_allclose(case.logits[6], kind(9), rtol=1e-6)
    np.testing.assert_allclose(case.logits[0], kind(2), rtol=1e-6)


def test_the_table_names_split_answers_and_mixed_clusters(tmp_path: Path) -> None:
    case = chosen(write(tmp_path, "both"))
    assert case.split_answers == {"5": [0, 1]}
    assert case.mixed_clusters == {0: ["5", "6"]}
    table = table_of(case)
    assert table.columns.tolist() == ["answer", "cluster 0", "cluster 1", "noise"]
    assert table.to_numpy().tolist() == [["5", 3, 3, ""], ["6", 3, "", ""]]
    assert patterns_of(case) == "answer 5 is in 2 clusters: 0, 1\ncluster 0 holds 2 answers: 5, 6"
    plain = chosen(write(tmp_path / "plain", "plain"))
    assert patterns_of(plain) == "every answer is in one cluster at most, and every cluster holds one answer"


def test_answers_that_differ_in_typesetting_are_one(tmp_path: Path) -> None:
    steps = [[Rollout("p", one, logits=kind(1)) for one in ("\\dfrac{1}{2}", "\\frac{1}{2}", "7.0", "7", None)]]
    case = chosen(write_run(tmp_path, steps))
    assert sorted(set(case.answers)) == ["(none)", "1/2", "7"]


def test_the_figure_has_a_row_per_rollout_and_a_column_per_layer(tmp_path: Path) -> None:
    case = chosen(write(tmp_path, "both"))
    strip, heatmap, apart, *_ = draw(case).axes
    assert heatmap.images[0].get_array().shape == (9, 8)
    np.testing.assert_array_equal(heatmap.images[0].get_array(), case.logits)
    np.testing.assert_allclose(apart.images[0].get_array().mean(axis=0), np.zeros(8), atol=1e-5)
    assert [text.get_text() for text in strip.texts] == ["0", "1"]
    assert [text.get_text() for text in strip.get_yticklabels()] == ["5", "6", "5"]
    assert strip.get_yticks().tolist() == [1.0, 4.0, 7.0]


def test_the_script_shows_the_prompt_that_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, files = write(tmp_path / "run", "plain", "both"), ["--figure", str(tmp_path / "f.png")]
    assert main([str(run), "--prompt", "plain", *files, "--json", str(tmp_path / "n.json")]) == 0
    assert capsys.readouterr().out.startswith("plain: 6 wrong rollouts, 2 clusters, of 'Work out plain.'\n")
    assert main([str(run), "--prompt", "other"]) == 2
    assert capsys.readouterr().err.startswith("error: --prompt=other: has no wrong rollout with layer logits")
