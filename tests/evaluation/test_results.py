"""From samples to scores, averages over benchmarks, and differences between models."""

import numpy as np
import pytest

from meds_openrlhf.evaluation.results import Comparison, Estimate, average, difference, evaluate, ks_up_to
from tests.evaluation.measured import problems, result, samples
from tests.evaluation.single import interval_of, interval_of_difference


def test_ks_are_powers_of_two_and_n() -> None:
    assert ks_up_to(1) == [1]
    assert ks_up_to(8) == [1, 2, 4, 8]
    assert ks_up_to(10) == [1, 2, 4, 8, 10]
    assert ks_up_to(128) == [1, 2, 4, 8, 16, 32, 64, 128]
    with pytest.raises(ValueError, match="n=0: must be at least 1"):
        ks_up_to(0)


def test_a_result_by_hand() -> None:
    measured = result("base", "toy", "1112", "2213", "2-22")
    assert (measured.model, measured.benchmark, measured.problems, measured.n) == ("base", "toy", 3, 4)
    # Right: 3, 1, 0 of 4; of the 6 pairs 6, 3, 0 hold a right one.
    values = {k: estimate.value for k, estimate in measured.pass_at.items()}
    assert values == pytest.approx({1: 4 / 12, 2: 9 / 18, 4: 2 / 3})
    # Pairs of "2213": 22 is wrong, 21 21 13 are ties with 1 in them, 23 23 without.
    values = {k: estimate.value for k, estimate in measured.majority_at.items()}
    assert values == pytest.approx({1: 4 / 12, 2: ((3 + 3 / 2) / 6 + (3 / 2) / 6) / 3, 4: 1 / 3})
    assert measured.truncated_share == pytest.approx(1 / 12)
    assert measured.mean_tokens == pytest.approx((11 * 4 + 9) / 12)
    assert measured.scores.ids == ("p0", "p1", "p2")
    assert measured.scores.pass_at[2].tolist() == pytest.approx([1, 0.5, 0])


def test_intervals_are_those_of_the_problems_scores() -> None:
    measured = result("base", "toy", *["1112", "2213", "2-22"] * 10)
    for k in (1, 2, 4):
        low, high = interval_of(measured.scores.pass_at[k])
        estimate = measured.pass_at[k]
        assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=1e-9)
        assert estimate.low < estimate.value < estimate.high


def test_the_order_of_samples_does_not_matter_and_later_ones_are_left_aside() -> None:
    given = samples({"p0": "1112", "p1": "2213"})
    measured = evaluate("base", "toy", problems(2), given, 4)
    assert evaluate("base", "toy", problems(2), given[::-1], 4) == measured
    more = given + samples({"p0": "1112111", "p1": "22133"})[4:7] + samples({"p1": "22133"})[4:]
    assert evaluate("base", "toy", problems(2), more, 4) == measured


def test_samples_that_do_not_fit_are_refused() -> None:
    given = samples({"p0": "1112", "p1": "2213"})
    with pytest.raises(ValueError, match=r"samples: 5 of 12 are missing, of 2 problems \('p1' is the first\)"):
        evaluate("base", "toy", problems(3), given[:7], 4)
    with pytest.raises(ValueError, match="'p1' is not a problem of the benchmark"):
        evaluate("base", "toy", problems(1), given, 4)
    with pytest.raises(ValueError, match="sample 0 of problem 'p0' occurs twice"):
        evaluate("base", "toy", problems(2), [*given, samples({"p0": "2"})[0]], 4)
    with pytest.raises(ValueError, match="problems: must not be empty"):
        evaluate("base", "toy", [], [], 4)


def test_every_benchmark_counts_the_same_in_the_average() -> None:
    small, large = result("base", "small", "11", "11"), result("base", "large", *["12", "22", "22", "22"] * 5)
    mean = average([small, large], [1, 2])
    assert mean.pass_at[1].value == pytest.approx((1 + 1 / 8) / 2)
    assert mean.pass_at[2].value == pytest.approx((1 + 1 / 4) / 2)
    assert mean.pass_at[1].low < mean.pass_at[1].value < mean.pass_at[1].high
    assert average([large], [1, 2]).pass_at == large.pass_at


def test_averages_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"results: must be of one model, not of \['a', 'b'\]"):
        average([result("a", "x", "1"), result("b", "y", "1")], [1])
    with pytest.raises(ValueError, match=r"ks: \[2\] were not measured on every benchmark"):
        average([result("a", "x", "12"), result("a", "y", "1")], [1, 2])


def test_a_difference_is_paired() -> None:
    first, second = result("meds", "x", "11", "12", "22", "12"), result("base", "x", "12", "12", "22", "22")
    gain = difference([first], [second], [1])
    assert gain.pass_at[1].value == pytest.approx(0.25)
    expected = interval_of_difference(first.scores.pass_at[1], second.scores.pass_at[1])
    assert (gain.pass_at[1].low, gain.pass_at[1].high) == pytest.approx(expected, abs=1e-9)
    assert difference([first], [first], [1]).majority_at[1].value == 0


def test_results_on_different_problems_are_not_compared() -> None:
    first = result("meds", "x", "11", "12")
    renamed = evaluate("base", "x", problems(3)[1:], samples({"p1": "11", "p2": "12"}), 2)
    with pytest.raises(ValueError, match="x: meds and base were evaluated on different problems"):
        difference([first], [renamed], [1])
    with pytest.raises(ValueError, match="x: base and meds were evaluated on different problems"):
        Comparison([first, renamed])


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
    assert list(comparison.averages) == ["base", "meds"]
    assert set(comparison.differences) == {("meds", "x"), ("meds", "y"), ("dapo", "y")}
    assert comparison.differences["dapo", "y"].pass_at[1].value == pytest.approx(-0.25)
    assert list(comparison.average_differences) == ["meds"]
    assert comparison.average_differences["meds"].pass_at[1].value == pytest.approx(0.25)


def test_two_results_of_one_model_on_one_benchmark_are_refused() -> None:
    with pytest.raises(ValueError, match="several results on a benchmark"):
        Comparison([result("base", "x", "1"), result("base", "x", "2")])
    with pytest.raises(ValueError, match="results: must not be empty"):
        Comparison([])


def test_an_estimate_is_a_value() -> None:
    assert Estimate(0.5, 0.25, 0.75) == Estimate(0.5, 0.25, 0.75)
    assert np.isfinite(result("base", "x", "1").pass_at[1].high)
