"""Recurrence and peaks by hand, and against simulations that are known to repeat or not."""

import numpy as np
import pytest

from meds_openrlhf.whatif.collapse import (
    WINDOW,
    coverage,
    distinct_wrong,
    equal_pairs,
    pass_by_step,
    peak_of,
    recurrence_of,
)
from meds_openrlhf.whatif.page import verdict_of
from tests.whatif.written import visits_of


def test_recurrence_by_hand() -> None:
    """Of prompts that had a wrong answer at first: a draws x or y, b has none, c answers nothing at first."""
    visits = visits_of({"a": "xxyr", "b": "rrrr", "c": "---r"}, {"a": "xzrr", "b": "xxrr", "c": "xrrr"}, {"a": "zyrr"})
    found = recurrence_of(visits)
    assert found is not None
    assert found.share == 3 / 4  # x, not z; then z and y
    chance = {"x": 2 / 3, "y": 1 / 3}

    def seen(draws: int) -> float:
        return sum(p * (1 - (1 - p) ** draws) for p in chance.values())

    assert found.null == pytest.approx((2 * seen(3) + 2 * seen(5)) / 4)
    low, high = found.interval
    assert 0 <= low <= found.null <= high <= 1
    assert recurrence_of(visits_of({"a": "xx"})) is None
    assert recurrence_of(visits_of({"a": "rr"}, {"a": "xx"})) is None


def test_recurrence_null_holds_for_a_policy_that_stays() -> None:
    """The first visit's answers are fewer than those that the policy can give, so the null is rather too high."""
    random = np.random.default_rng(0)

    def draws(letters: str) -> list[str]:
        return ["".join(random.choice(list(letters), 8)) for _ in range(200)]

    def run(repeats: bool) -> tuple[float, tuple[float, float]]:
        first = draws("abcdefgh")
        later = [[row[0] * 8 for row in first] if repeats else draws("abcdefgh") for _ in range(3)]
        found = recurrence_of(visits_of(*({f"p{i}": row for i, row in enumerate(rows)} for rows in (first, *later))))
        assert found is not None
        return found.share, found.interval

    share, (_, high) = run(repeats=True)
    assert share == 1 > high
    share, (_, high) = run(repeats=False)
    assert share < high


def test_pairs_and_distinct_answers_of_groups() -> None:
    visits = visits_of({"a": "xxyr", "b": "z--r"}, {"a": "wwww"})
    assert equal_pairs(visits) == (1 + 6) / (3 + 6)
    assert distinct_wrong(visits) == (2 + 1 + 1) / 3
    assert equal_pairs(visits_of({"a": "xr"})) is distinct_wrong(visits_of({"a": "r-"})) is None


def test_coverage_counts_prompts_solved_so_far() -> None:
    visits = visits_of({"a": "xx", "b": "rx"}, {"a": "xx", "c": "xx"}, {"a": "rr", "b": "xx"})
    assert coverage(visits) == {1: 1 / 2, 2: 1 / 3, 3: 2 / 3}


def test_pass_at_k_by_step_leaves_out_smaller_groups() -> None:
    visits = visits_of({"a": "rxxx", "b": "xxxx", "c": "rr"}, {"a": "rrxx"})
    assert pass_by_step(visits) == {1: {1: 1 / 8, 2: 1 / 4, 4: 1 / 2}, 2: {1: 1 / 2, 2: pytest.approx(5 / 6), 4: 1.0}}


def collapsing(prompts: int, steps: int, lost_from: int) -> list[dict[str, str]]:
    """Prompts of which half are never solved again from a step on, while the others are solved more often."""
    return [
        {
            f"p{number}": "xxxx" if step >= lost_from and number % 2 else "rrrx" if step >= lost_from else "rxxx"
            for number in range(prompts)
        }
        for step in range(1, steps + 1)
    ]


def test_a_peak_is_found_and_its_fall_is_sure_with_many_prompts() -> None:
    peak = peak_of(visits_of(*collapsing(40, 30, lost_from=16)))
    assert peak is not None
    assert peak.collapses
    assert (peak.k, peak.last) == (4, 30)
    assert WINDOW // 2 + 1 <= peak.step <= 15 - WINDOW // 2
    assert peak.fall == pytest.approx(0.5)
    assert peak.pass1_rise == pytest.approx(0.375 - 0.25)
    few = peak_of(visits_of(*collapsing(2, 30, lost_from=16)))
    assert few is not None
    assert few.interval[0] < peak.interval[0] < peak.interval[1] < few.interval[1]


@pytest.mark.parametrize(("steps", "collapses"), [(2 * WINDOW - 1, None), (2 * WINDOW, True)])
def test_a_run_shorter_than_two_windows_is_told_nothing(steps: int, collapses: bool | None) -> None:
    peak = peak_of(visits_of(*collapsing(40, steps, lost_from=WINDOW + 1)))
    assert peak is not None
    assert peak.interval[0] > 0
    assert peak.collapses is collapses
    assert verdict_of(peak).startswith("13 steps are too few to say where") is (collapses is None)


def test_a_run_that_stays_as_it_is_is_seldom_told_that_it_collapses() -> None:
    """The best of 194 windows exceeds the last one by ten points of chance, not shared by the other half."""
    found = []
    for seed in range(10):
        random = np.random.default_rng(seed)
        skill = random.beta(0.5, 1.0, 200)
        steps = []
        for _ in range(200):
            chosen = random.choice(200, 16, replace=False)
            right = random.random((16, 8)) < skill[chosen, np.newaxis]
            rows = ("".join("r" if one else "x" for one in row) for row in right)
            steps.append(dict(zip((f"p{number:03}" for number in chosen), rows)))
        peak = peak_of(visits_of(*steps))
        assert peak is not None
        found.append((peak.collapses, peak.fall))
    assert sum(collapses for collapses, _ in found) <= 1
    assert abs(np.mean([fall for _, fall in found])) < 0.03


def test_a_run_that_rises_to_its_end_does_not_fall() -> None:
    rising = [{f"p{i}": "rxxx" if i < step else "xxxx" for i in range(30)} for step in range(30)]
    peak = peak_of(visits_of(*rising))
    assert peak is not None
    assert (peak.fall, peak.collapses, peak.step) == (0, False, 30 - WINDOW // 2)
    short = peak_of(visits_of({"a": "rx"}, {"a": "xx"}))
    assert short is not None
    assert (short.fall, short.step) == (0, 2)  # shorter than a window: there is nothing to compare


def test_steady_runs_and_single_visits_do_not_collapse() -> None:
    assert peak_of(visits_of({"a": "rx"}, {"b": "rx"})) is None
    steady = peak_of(visits_of(*[{"a": "rxxx", "b": "xxrx"}] * 20))
    assert steady is not None
    assert not steady.collapses
    assert steady.fall == 0
