"""From samples to scores, averages over benchmarks, and differences between models."""

import numpy as np
import pytest
from pandas.testing import assert_frame_equal

from meds_openrlhf.evaluation import results
from meds_openrlhf.evaluation.results import AVERAGE, Comparison, evaluate, votes_of
from meds_openrlhf.evaluation.samples import Sample
from meds_openrlhf.rewards.grading import equal
from meds_openrlhf.stats.estimates import DIFFERENCES, NO_VOTE, mean_intervals
from tests.evaluation.measured import problems, result, samples


def test_votes_group_right_answers_and_equal_wrong_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [
        *[("1/2", True), ("3", False), (None, False), ("0.5", True), ("4", False), ("3.0", False)],
        *[(r"\frac12", False), (r"\dfrac{1}{2}", False), ("0.5", False), ("2", False)],
    ]
    samples = [Sample("a", i, "", 1, False, answer, right) for i, (answer, right) in enumerate(given)]
    assert votes_of(samples).tolist() == [0, 1, NO_VOTE, 0, 2, 1, 3, 3, 3, 4]
    monkeypatch.setattr(results, "equal", lambda *_: None)  # takes too long: equal only if written alike
    assert votes_of([samples[1], samples[-2], samples[-4], samples[1]]).tolist() == [
        1,
        2,
        2,
        1,
    ]  # a decimal and its quotient
    slow = Sample("a", 9, "", 1, False, "slow", False)
    monkeypatch.setattr(results, "equal", lambda *two: None if "slow" in two else equal(*two))
    assert votes_of([slow, *samples[6:9]]).tolist() == [1, 2, 2, 2]  # the others are equal as ever


def test_a_result_by_hand() -> None:
    measured = result("base", "toy", "1112", "2213", "2-22")
    assert (measured.model, measured.benchmark, measured.problems, measured.n) == ("base", "toy", 3, 4)
    assert measured.scores.index.tolist() == ["p0", "p1", "p2"]
    assert measured.curves.value.to_dict() == pytest.approx({
        # Right: 3, 1, 0 of 4; of the 6 pairs 6, 3, 0 hold a right one.
        ("pass", 1): 4 / 12, ("pass", 2): 9 / 18, ("pass", 4): 2 / 3,
        # Pairs of "2213": 22 is wrong, 21 21 13 are ties with 1 in them, 23 23 without.
        ("maj", 1): 4 / 12, ("maj", 2): ((3 + 3 / 2) / 6 + (3 / 2) / 6) / 3, ("maj", 4): 1 / 3,
    })  # fmt: skip
    assert measured.truncated_share == pytest.approx(1 / 12)
    assert measured.mean_tokens == pytest.approx((11 * 4 + 9) / 12)
    assert measured.scores["pass", 2].tolist() == pytest.approx([1, 0.5, 0])


def test_intervals_are_those_of_the_problems_scores() -> None:
    measured = result("base", "toy", *["1112", "2213", "2-22"] * 10)
    for key, estimate in measured.curves.iterrows():
        ((low, high),) = mean_intervals([measured.scores[[key]].to_numpy()])
        assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=1e-9)
        assert estimate.low < estimate.value < estimate.high


def test_the_order_of_samples_does_not_matter_and_later_ones_are_left_aside() -> None:
    given = samples({"p0": "1112", "p1": "2213"})
    measured = evaluate("base", "toy", problems(2), given, 4)
    assert_frame_equal(evaluate("base", "toy", problems(2), given[::-1], 4).scores, measured.scores)
    more = given + samples({"p0": "1112111", "p1": "22133"})[4:7] + samples({"p1": "22133"})[4:]
    again = evaluate("base", "toy", problems(2), more, 4)
    assert again == measured
    assert_frame_equal(again.curves, measured.curves)


def test_every_benchmark_counts_the_same_in_the_average() -> None:
    small, large = result("base", "small", "11", "11"), result("base", "large", *["12", "22", "22", "22"] * 5)
    mean = Comparison([small, large]).scores["base", AVERAGE]
    assert mean.loc["pass", 1].value == pytest.approx((1 + 1 / 8) / 2)
    assert mean.loc["pass", 2].value == pytest.approx((1 + 1 / 4) / 2)
    assert mean.loc["pass", 1].low < mean.loc["pass", 1].value < mean.loc["pass", 1].high
    assert_frame_equal(Comparison([large]).scores["base", AVERAGE], large.curves)


def test_a_difference_is_paired() -> None:
    first, second = result("meds", "x", "11", "12", "22", "12"), result("base", "x", "12", "12", "22", "22")
    gain = Comparison([second, first]).gains["meds", "x"].loc["pass", 1]
    assert gain.value == pytest.approx(0.25)
    differences = first.scores["pass", 1] - second.scores["pass", 1]
    ((low, high),) = mean_intervals([differences.to_numpy()[:, None]], DIFFERENCES)
    assert (gain.low, gain.high) == pytest.approx((low, high), abs=1e-9)


def test_a_comparison_of_what_there_is() -> None:
    comparison = Comparison(
        [
            result("base", "x", "1222", "2222"),
            result("base", "y", "11", "12"),
            result("meds", "x", "1122", "1222"),
            result("dapo", "y", "12", "12"),
            result("meds", "y", "11", "11"),
        ]
    )
    assert comparison.models == ["base", "meds", "dapo"]
    assert comparison.benchmarks == ["x", "y"]
    assert comparison.ks == [1, 2]
    assert [model for model, benchmark in comparison.scores if benchmark == AVERAGE] == ["base", "meds"]
    assert set(comparison.gains) == {("meds", "x"), ("meds", "y"), ("meds", AVERAGE), ("dapo", "y")}
    assert comparison.gains["dapo", "y"].loc["pass", 1].value == pytest.approx(-0.25)
    assert comparison.gains["meds", AVERAGE].loc["pass", 1].value == pytest.approx(0.25)
    assert np.isfinite(comparison.gains["meds", AVERAGE]).all(axis=None)
