"""The theorem: its identity and inequality as laws, its counterexamples, and what is read from a run."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.gibbs import (
    gain,
    gain_by_covariance,
    gibbs,
    repeats_score_no_higher,
    repeats_score_no_higher_on_average,
)
from analysis.theorem import COLUMNS, Problem, check_run, main, weights_of
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.runs.log import logged_rollouts
from tests.analysis.runs import Rollout, kind, write_run


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    count = draw(st.integers(2, 8))
    numbers = st.lists(st.floats(-3, 3), min_size=count, max_size=count)
    weights = np.array(draw(st.lists(st.floats(0.01, 1), min_size=count, max_size=count)))
    sizes = np.array(draw(st.lists(st.integers(0, 30), min_size=count, max_size=count)))
    penalty = draw(st.floats(0.01, 1)) * np.log(sizes + 1)
    return Problem(weights / weights.sum(), np.array(draw(numbers)), penalty, draw(st.floats(0.05, 5)))


@given(problems())
def test_the_identity_is_exact(problem: Problem) -> None:
    by_covariance = gain_by_covariance(problem.updated, problem.reward, problem.penalty, problem.eta)
    assert abs(problem.gain - by_covariance) <= 1e-12 * max(np.abs(problem.reward).max(), 1e-6)


@given(problems())
def test_where_repeats_score_no_higher_nothing_is_lost(problem: Problem) -> None:
    order = np.argsort(problem.reward, kind="stable")
    penalty = np.empty_like(problem.penalty)
    penalty[order] = np.sort(problem.penalty)[::-1]
    assert repeats_score_no_higher(problem.reward, penalty)
    assert gain(problem.policy, problem.reward, penalty, problem.eta) >= -1e-12
    reversed_penalty = penalty.max() - penalty
    assert gain(problem.policy, problem.reward, reversed_penalty, problem.eta) <= 1e-12


@given(problems())
def test_means_are_all_that_the_proof_needs(problem: Problem) -> None:
    on_average = repeats_score_no_higher_on_average(problem.updated, problem.reward, problem.penalty)
    if repeats_score_no_higher(problem.reward, problem.penalty):
        assert on_average
    if on_average:
        assert problem.gain >= -1e-10


@given(problems())
def test_the_assumption_is_about_every_two_responses(problem: Problem) -> None:
    pairs = [
        problem.reward[i] <= problem.reward[j]
        for i in range(len(problem.reward))
        for j in range(len(problem.reward))
        if problem.penalty[i] > problem.penalty[j]
    ]
    assert repeats_score_no_higher(problem.reward, problem.penalty) == all(pairs)


def test_two_responses_by_hand() -> None:
    """p = (1/2, 1/2), r = (1, 0), eta 1: q1 = (e, 1) / (e + 1); c = ln 2 on the first halves its weight."""
    policy, reward = np.array([0.5, 0.5]), np.array([1.0, 0.0])
    np.testing.assert_allclose(gibbs(policy, reward), [math.e / (math.e + 1), 1 / (math.e + 1)], rtol=1e-15)
    penalized_right = np.array([math.log(2), 0.0])
    expected = (math.e / 2) / (math.e / 2 + 1) - math.e / (math.e + 1)
    assert gain(policy, reward, penalized_right, 1.0) == pytest.approx(expected, abs=1e-15)
    assert expected < 0
    assert not repeats_score_no_higher(reward, penalized_right)
    assert gain(policy, reward, penalized_right[::-1], 1.0) > 0


def test_means_may_fall_where_single_responses_do_not() -> None:
    """Repeated responses score 0 and 0.8, the others 0.5 and 1: 0.8 is above 0.5, 0.4 is not above 0.75."""
    updated, repeats = np.full(4, 0.25), np.array([3.0, 3.0, 0.0, 0.0])
    assert repeats_score_no_higher(np.array([0.0, 1.0, 1.0, 1.0]), repeats)
    mixed = np.array([0.0, 0.8, 0.5, 1.0])
    assert not repeats_score_no_higher(mixed, repeats)
    assert repeats_score_no_higher_on_average(updated, mixed, repeats)
    assert gain_by_covariance(updated, mixed, repeats, 1.0) > 0


def test_huge_penalties_do_not_overflow() -> None:
    policy, reward = np.array([0.3, 0.7]), np.array([0.0, 1.0])
    for penalty in (np.array([5000.0, 4000.0]), np.array([5000.0, 0.0])):
        updated = gibbs(policy, reward)
        assert gain_by_covariance(updated, reward, penalty, 1.0) == pytest.approx(1 - updated[1], abs=1e-12)
        assert gain(policy, reward, penalty, 1.0) == pytest.approx(1 - updated[1], abs=1e-12)


def rollouts(*rows: tuple[int, str, float, int]) -> pa.Table:
    """A log of (step, prompt, reward, cluster size)."""
    return pa.Table.from_pylist([dict(zip(("step", "prompt", *COLUMNS), row)) for row in rows])


def test_groups_of_a_run_are_counted_and_their_gain_is_the_theorems() -> None:
    log = rollouts(
        (1, "p", 1.0, 0), (1, "p", 0.0, 0),  # no repeats yet: holds, gains nothing
        (2, "p", 1.0, 0), (2, "p", 0.0, 3),  # the repeat scores lower
        (2, "q", 0.0, 3), (2, "q", -0.5, 0),  # a repeat scores higher than a first error that ran too long
    )  # fmt: skip
    found = check_run("run", log, {"alpha": 0.1, "beta": 0.2}, etas=[1.0, 10.0])
    assert (found["groups"], found["telling"]) == (3, 2)
    assert (found["holds"], found["holds_telling"], found["prompts_always"]) == pytest.approx((2 / 3, 0.5, 0.5))
    assert found["holds_on_average"] == pytest.approx(2 / 3)
    weight = math.exp(-0.1 * math.log(4))
    gained, lost = 1 / (1 + weight) - 0.5, (-0.5 / (1 + weight)) + 0.25
    assert found["mean_gain"]["1"] == pytest.approx((gained + lost) / 3, abs=1e-7)
    assert found["least_gain"]["1"] == pytest.approx(lost, abs=1e-7)
    assert found["negative"] == {"1": 1, "10": 1}


def test_penalties_are_capped_as_in_training() -> None:
    """Sizes 10 and 1000 both cost beta: the assumption then asks nothing of the two."""
    log = rollouts((1, "p", -0.5, 10), (1, "p", 0.0, 1000))
    assert check_run("run", log, {"alpha": 0.1, "beta": 0.2}, etas=[1.0])["holds"] == 1.0
    assert check_run("run", log, {"alpha": 0.1, "beta": 9.0}, etas=[1.0])["holds"] == 0.0


def test_a_run_with_one_response_to_each_prompt_is_left_out() -> None:
    log = rollouts((1, "p", 1.0, 0), (1, "q", 0.0, 3), (2, "p", 0.0, 1))
    with pytest.raises(ConfigError, match="RUN=run: has one response to each prompt in a step"):
        check_run("run", log, {"alpha": 0.1, "beta": 0.2}, etas=[1.0])


def test_the_script_takes_runs_with_and_without_a_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = [Rollout("p", "1", correct=True), Rollout("p", "2", logits=kind(1)), Rollout("p", "3", logits=kind(2))]
    run = write_run(tmp_path / "run", [step] * 3)
    assert len(logged_rollouts(run)) == 9
    RunPaths(run).config.write_text("meds: {run_dir: r, penalty: {alpha: 0.3, beta: 0.5}}")
    files = ["--figure", str(tmp_path / "f.png"), "--json", str(tmp_path / "n.json")]
    assert main([str(run), "--problems", "50", "--eta", "2", *files]) == 0
    printed = capsys.readouterr().out
    assert "50 random problems, and as many under the assumption:" in printed
    assert [cell.strip() for cell in printed.splitlines()[-1].split("|")][1:6] == ["run", "0.3", "0.5", "3", "100.0%"]
    numbers = json.loads((tmp_path / "n.json").read_text())
    assert numbers["runs"][0]["groups"] == 3
    assert numbers["runs"][0]["weights"] == {"alpha": 0.3, "beta": 0.5}
    assert len(numbers["random"]["worst"]["reward"]) >= 2
    assert main([str(tmp_path / "nowhere"), "--problems", "5", *files]) == 2


def test_the_penalty_is_the_runs_own_unless_said_otherwise(tmp_path: Path) -> None:
    config = RunPaths(tmp_path).config
    assert weights_of(tmp_path, 0.4, 0.8) == {"alpha": 0.4, "beta": 0.8}
    with pytest.raises(ConfigError, match=r"config\.yaml: not a readable YAML file"):
        weights_of(tmp_path, 0.4, None)
    config.write_text("meds: {run_dir: r, penalty: {alpha: 0.3, beta: 0.5}}")
    assert weights_of(tmp_path, None, None) == {"alpha": 0.3, "beta": 0.5}
    assert weights_of(tmp_path, 0.0, None) == {"alpha": 0.0, "beta": 0.5}
    config.write_text("meds: {run_dir: r, penalty: {scope: batch}}")
    with pytest.raises(ConfigError, match="gives a bonus within the step"):
        weights_of(tmp_path, None, None)
