"""The judge that knows the demo's mistakes, and how far clusters and themes agree with it."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from analysis import known_themes
from analysis.known_mistakes import coverage_of, main, scores_of, wrong_and_explained
from analysis.mistakes import Explanation, explain, expression_of, kinds_of, written_steps
from meds_openrlhf.arithmetic.problems import MISTAKES, draw_problems, work, write_solution
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.data.questions import qwen_math_prompt
from tests.analysis.runs import Rollout, kind, write_arithmetic_run, write_run
from tests.report import stored_runs

POOL = draw_problems(200, seed=5)


@given(st.sampled_from(POOL), st.sampled_from(MISTAKES), st.integers(0, 10_000))
def test_every_written_solution_is_traced_to_its_mistake(problem, mistake, seed) -> None:
    working = work(problem.expression, mistake)
    assume(working.answer != problem.answer)
    assume(len(str(working.steps)) <= 60)  # longer ones have no words that fit
    text = write_solution(problem, mistake, random.Random(seed))
    assert written_steps(text) == working.steps
    found = explain(problem.expression, str(working.answer), text)
    assert found.evidence == "steps"
    assert mistake.name in (found.kind or "").split(" / ")


@pytest.mark.parametrize(
    ("response", "steps"),
    [
        ("First 3*5 is 15. 4-15=-11; -11-3 = -14: ", (("3*5", 15), ("4-15", -11), ("-11-3", -14))),
        ("Now 5+6 = 11, then 2+2+1 is 5. So ", (("5+6", 11), ("2+2+1", 5))),
        ("So 9--1=10 ", (("9--1", 10),)),
        ("no steps at all 42", ()),
    ],
)
def test_steps_are_read_as_they_are_written(response: str, steps: tuple) -> None:
    assert written_steps(response) == steps


def test_an_answer_alone_may_have_several_explanations() -> None:
    """4*(3-1): with brackets ignored 4*3-1 = 11; off by one 3, 12; flipped -8."""
    assert explain("4*(3-1)", "11", None) == Explanation(("ignored brackets",), "answer")
    assert explain("4*(3-1)", "-8", "3-1=-2, 4*-2=-8") == Explanation(("flipped subtraction",), "steps")
    assert explain("4*(3-1)", "11", "I guess 11") == Explanation(("ignored brackets",), "answer")
    assert explain("4*(3-1)", "5", "3-1=2") == Explanation((), "nothing")
    assert explain("4*(3-1)", "5", None) == Explanation((), "nothing")
    assert explain("4*(3-1)", "x", None) == explain("4*(3-1)", None, None) == Explanation((), "nothing")


def test_a_slip_after_a_mistake_leaves_the_mistake() -> None:
    """(3-2)*5-5 with brackets ignored begins with 2*5; whatever comes of it later."""
    slipped = Explanation(("ignored brackets",), "first wrong step")
    assert explain("(3-2)*5-5", "-13", "2*5=10, 3-10=-8, -8-5=-13") == slipped
    assert explain("(3-2)*5-5", None, "2*5=10, 3-10") == slipped
    assert explain("(3-2)*5-5", "0", "3-2=1, 1*5=6, 6-5=1") == Explanation((), "nothing")  # a slip of its own
    assert explain("(3-2)*5-5", "3", "3-2=1, 1*5=5, 5-5=0") == Explanation((), "nothing")  # all steps are right
    assert explain("(3-2)*5-5", "10", "3-2=-1, -1*5=-5, -5-5=10").kind == "flipped subtraction"


def test_steps_decide_between_mistakes_with_one_answer() -> None:
    shared = next(
        (one.expression, answer)
        for one in draw_problems(200, seed=0)
        for answer in {working.answer for working in kinds_of(one.expression)}
        if sum(working.answer == answer for working in kinds_of(one.expression)) > 1
    )
    expression, answer = shared
    assert len(explain(expression, str(answer), None).kinds) == 2
    assert explain(expression, str(answer), None).kind is None
    for working, name in kinds_of(expression).items():
        if working.answer == answer:
            text = ", ".join(f"{left}={result}" for left, result in working.steps)
            assert explain(expression, str(answer), text).kind == name


def test_the_problem_is_found_within_its_prompt() -> None:
    assert all(expression_of(qwen_math_prompt(one.expression)) == one.expression for one in POOL)
    with pytest.raises(ConfigError, match=r"has 0 arithmetic problems instead of 1: .* Name a run of the demo's task"):
        expression_of("How many primes are below 100?")


def test_coverage_counts_every_wrong_row_once() -> None:
    rows = [("steps", ("a",)), ("answer", ("a",)), ("answer", ("b",)), ("answer", ("a", "b")), ("nothing", ())]
    rows += [("first wrong step", ("b",))]
    found = coverage_of([Explanation(kinds, evidence) for evidence, kinds in rows])
    kinds = {"a": 2, "b": 2}
    assert list(found.values()) == [6, 1, 1, 2, 1, 1, kinds]


def scores(run: Path) -> dict[tuple[str, str], dict[str, float]]:
    return {
        (score["variant"], score["preset"]): score["per_prompt"] for score in scores_of(run, *wrong_and_explained(run))
    }


def test_clusters_made_of_mistakes_agree_wholly_and_shuffled_ones_do_not(tmp_path: Path) -> None:
    perfect = scores(write_arithmetic_run(tmp_path / "told"))
    assert len(perfect) == 4 * 3 + 4
    for combination, found in perfect.items():
        if combination[1] != "any":
            assert found == pytest.approx(dict.fromkeys(found, 1.0), abs=1e-12)
    # Three mistakes, eight rows each: of 276 pairs 84 are of one mistake.
    assert perfect["single", "any"]["pairwise"] == pytest.approx(84 / 276)
    assert perfect["alone", "any"]["pairwise"] == pytest.approx(192 / 276)
    assert perfect["single", "any"]["adjusted_rand"] == perfect["alone", "any"]["adjusted_rand"] == 0.0
    shuffled = scores(write_arithmetic_run(tmp_path / "shuffled", shuffled=True))
    assert shuffled["last-half", "robust"]["adjusted_rand"] < 0.3
    assert shuffled["last-half", "robust"]["pairwise"] < 0.7


def test_answers_without_logits_know_these_mistakes_nearly(tmp_path: Path) -> None:
    """The three problems' answers are -14 8 8, 22 -16 20 and -9 15 7, eight responses each.

    If two mistakes look equal, 84 of 276 pairs are of one mistake, 148 of one cluster, and 84 of both.
    """
    found, chance = scores(write_arithmetic_run(tmp_path)), 84 * 148 / 276
    two_are_one = (84 - chance) / ((84 + 148) / 2 - chance)
    assert two_are_one == pytest.approx(28 / 51)
    assert found["equal-answer", "any"]["adjusted_rand"] == pytest.approx((28 / 51 + 1 + 1) / 3)
    assert found["first-character", "any"]["adjusted_rand"] == pytest.approx((28 / 51 + 28 / 51 + 1) / 3)
    assert found["first-character", "any"]["homogeneity"] < found["equal-answer", "any"]["homogeneity"] < 1
    assert found["first-character", "any"]["completeness"] == pytest.approx(1)


def test_without_texts_the_answer_speaks_alone(tmp_path: Path) -> None:
    """(4-3)*5-3: flipped subtractions and being off by one both come to 8, so 16 of its 24 rows are not compared."""
    wrong, explanations = wrong_and_explained(write_arithmetic_run(tmp_path, texts=False))
    found = coverage_of(explanations)
    assert list(found.values())[:-1] == [72, 0, 0, 56, 16, 0]
    assert {score["rows"] for score in scores_of(tmp_path, wrong, explanations)} == {56}


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("Who?", "RUN: a prompt has 0 arithmetic problems instead of 1: 'Who?'"),
        ("3+4*2", "RUN: has no two wrong rollouts of the same prompt that a mistake explains"),
    ],
)
def test_a_run_with_nothing_to_compare_is_refused(
    question: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path, [[Rollout("p", "8", logits=kind(0), prompt_text=question)]])
    assert main([str(run)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_ways_are_compared_between_both_trivial_ways_and_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [write_arithmetic_run(tmp_path / "a"), write_arithmetic_run(tmp_path / "b", shuffled=True)]
    numbers = tmp_path / "numbers.json"
    assert known_themes.main([*map(str, runs), "--json", str(numbers)]) == 0
    pure, mixed = json.loads(numbers.read_text())["adjusted_rand"].values()
    assert pure["baseline: one theme for all clusters"] == 0
    assert 0 < pure["baseline: one theme per cluster"] < 1
    assert pure["the clusters' most frequent mistake"] == 1  # each cluster is of one mistake
    assert mixed["the clusters' most frequent mistake"] < 0.9
    assert pure["words, calculation and how it relates (the default)"] > pure["text of the responses"]
    assert capsys.readouterr().out.startswith("| themes by ")
    short = [[stored_runs.Rollout("1+2", stored_runs.NOBODY, "4", text="4")]]
    run = stored_runs.write_run(tmp_path / "short", short)
    assert known_themes.main([str(run.root)]) == 2
    assert "RUN=" in capsys.readouterr().err
