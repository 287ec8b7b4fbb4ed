"""What methods would have done is what a training does, and by hand where that is easy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.shaping.focal import Focal, focal_weights
from meds_openrlhf.shaping.law import ResponseAdvantages, normalized, shaped_advantages
from meds_openrlhf.shaping.method import Step
from meds_openrlhf.whatif.methods import CANDIDATES, Candidate, baseline_of, moved_by, sizes_of
from meds_openrlhf.whatif.visits import Visits
from tests.whatif.written import visits_of

BY_NAME = {candidate.name: candidate for candidate in CANDIDATES}
LETTERS = st.text("rxyz", min_size=4, max_size=4)
RUNS = st.lists(st.fixed_dictionaries({"a": LETTERS, "b": LETTERS, "c": LETTERS}), min_size=2, max_size=3)


def moved(visits: Visits, name: str) -> tuple[float | None, float | None]:
    found = moved_by(visits, BY_NAME[name], baseline_of(visits))
    return found.amplitude, found.cosine


def test_the_baseline_is_normalized_by_the_sample_deviation() -> None:
    visits = visits_of({"a": "rxxx", "b": "rrrr", "c": "r"})
    deviation = np.std([1, 0, 0, 0], ddof=1)
    expected = [*((np.array([1, 0, 0, 0]) - 0.25) / deviation), *[0] * 5]
    assert baseline_of(visits) == pytest.approx(np.array(expected), abs=1e-5)


def test_methods_without_errors_by_hand() -> None:
    visits = visits_of({"a": "rxxx"}, {"a": "rrrx"}, {"a": "rrrx"})
    before, positive = baseline_of(visits), baseline_of(visits) > 0
    squares = before**2
    amplitude, _ = moved(visits, "right-weight")
    assert amplitude == pytest.approx(0.9 * np.sqrt(squares[positive].sum() / squares.sum()))
    weights = np.repeat(1 - visits.success, 4)
    amplitude, cosine = moved(visits, "focal")
    assert amplitude == pytest.approx(np.sqrt((squares * (1 - weights) ** 2).sum() / squares.sum()))
    assert cosine == pytest.approx((squares * weights).sum() / np.sqrt((squares * weights**2).sum() * squares.sum()))
    assert moved(visits, "leave-out") == (0.0, pytest.approx(1.0))  # 1 of 1, then 1 of 2 visits are not solved
    solved = visits_of({"a": "rrrx"}, {"a": "rxxx"})
    amplitude, cosine = moved(solved, "leave-out")
    assert amplitude == pytest.approx(np.sqrt(0.5))
    assert cosine == pytest.approx(np.sqrt(0.5))


def test_methods_of_an_empty_memory_change_nothing() -> None:
    visits = visits_of({"a": "rxyx", "b": "rrxx"})
    for name in ("penalty", "weights", "focal", "leave-out"):
        found = moved_by(visits, BY_NAME[name], baseline_of(visits))
        assert (found.amplitude, found.changes_nothing, found.prompts) == (0.0, True, {})
    equal = visits_of({"a": "rr", "b": "xx"}, {"a": "rr"})
    found = moved_by(equal, BY_NAME["right-weight"], baseline_of(equal))
    assert (found.amplitude, found.cosine, found.solved, found.changes_nothing) == (None, None, None, True)
    bonus = moved_by(equal, BY_NAME["answer-ucb"], baseline_of(equal))
    assert (bonus.amplitude, bonus.changes_nothing) == (None, False)  # they are all that there is


def test_a_group_without_a_right_response_is_in_no_mixed_one() -> None:
    both, mixed = ({"a": "rxxy", "b": "xxyz"}, {"a": "rxyy", "b": "xxxy"}), ({"a": "rxxy"}, {"a": "rxyy"})
    penalty = BY_NAME["penalty"]
    of_both, of_mixed = (
        moved_by(visits, penalty, baseline_of(visits)) for visits in (visits_of(*both), visits_of(*mixed))
    )
    assert of_both.mixed == of_mixed.mixed == of_mixed.amplitude
    assert of_both.amplitude > 2 * of_both.mixed > 0


def test_shares_of_the_pull_and_the_prompts_that_are_changed_most() -> None:
    visits = visits_of({"a": "rrrx", "b": "rxxx"}, {"a": "rrxy", "b": "rxyz"})
    baseline = baseline_of(visits)
    found = moved_by(visits, BY_NAME["leave-out"], baseline)
    pull = np.abs(baseline)
    assert found.solved == 0.0
    assert list(found.prompts) == ["a"]
    assert found.by_step[1] == 0.0
    other = moved_by(visits, BY_NAME["right-weight"], baseline)
    is_seen = ~visits.correct & (visits.given_before > 0)
    assert is_seen.sum() == 2
    weighted = pull * np.where(visits.correct, 0.1, 1.0)
    assert other.seen_before == pytest.approx(weighted[is_seen].sum() / weighted.sum())
    assert other.solved == pytest.approx(weighted[8:12].sum() / weighted.sum())


def test_the_runs_own_memory_is_asked_if_it_has_one() -> None:
    steps = {"a": "rxyx"}, {"a": "rxyx"}
    assert sizes_of(visits_of(*steps), BY_NAME["penalty"]).tolist() == [0, 0, 0, 0, 0, 2, 1, 2]
    stored = [0, 0, 0, 0, 0, 9, 9, 0]
    assert sizes_of(visits_of(*steps, stored=stored), BY_NAME["weights"]).tolist() == stored
    assert sizes_of(visits_of(*steps, stored=stored), BY_NAME["answer-ucb"]).tolist() == [0] * 4 + [1, 2, 1, 2]


# ── focal weights ──


def step_of(rewards: np.ndarray, success: np.ndarray) -> Step:
    none = np.zeros(rewards.shape)
    correct = rewards > 0.5
    return Step(rewards, correct, none.astype(int), ~correct, none.astype(bool), success)


def advantages(step: Step, *methods: Focal) -> np.ndarray:
    def estimate(rewards: np.ndarray, _: bool) -> ResponseAdvantages:
        return ResponseAdvantages(normalized(rewards))

    return shaped_advantages(step, methods, estimate)[0].values


@given(
    rows=st.lists(st.tuples(LETTERS, st.floats(0, 1)), min_size=1, max_size=5), gamma=st.sampled_from([0.0, 0.5, 1, 2])
)
def test_focal_weights_keep_signs_and_first_visits(rows: list[tuple[str, float]], gamma: float) -> None:
    rewards = np.array([[float(letter == "r") for letter in letters] for letters, _ in rows])
    success = np.repeat([[share] for _, share in rows], 4, axis=1)
    plain, weighted = normalized(rewards), advantages(step_of(rewards, success), Focal(gamma))
    assert (np.sign(weighted) * np.sign(plain) >= 0).all()
    assert (np.abs(weighted) <= np.abs(plain)).all()
    np.testing.assert_array_equal(weighted, plain * focal_weights(success, gamma))
    np.testing.assert_array_equal(advantages(step_of(rewards, success), Focal(0.0)), plain)
    np.testing.assert_array_equal(advantages(step_of(rewards, np.zeros_like(success)), Focal(gamma)), plain)


def test_focal_weights_by_hand() -> None:
    assert focal_weights(np.array([0.0, 0.25, 1.0]), 2.0).tolist() == [1.0, 0.5625, 0.0]


@given(steps=RUNS)
def test_every_method_of_any_run_gives_numbers(steps: list[dict[str, str]]) -> None:
    visits = visits_of(*steps)
    baseline = baseline_of(visits)
    for candidate in CANDIDATES:
        found = moved_by(visits, candidate, baseline)
        assert isinstance(candidate, Candidate)
        for value in (found.amplitude, found.cosine, found.seen_before, found.solved, *found.by_step.values()):
            assert value is None or np.isfinite(value)
