"""The benchmark of generation, and its engines in simulated time."""

import math

import pytest

from benchmarks import generation
from benchmarks.generation import PROMPT, SimulatedFleet, step_seconds


def run(fleet: SimulatedFleet, prompts: int) -> list[float]:
    """The times at which as many prompts are answered."""
    left, times = [fleet.generate(prompt=str(number)) for number in range(prompts)], list[float]()
    while left:
        for call in fleet.wait(left):
            left.remove(call)
            times.append(fleet.now)
    return times


def test_a_response_alone_takes_its_steps() -> None:
    (seconds,) = run(SimulatedFleet(1, 8, lambda _: ([1000], ["a"])), 1)
    assert seconds == pytest.approx(sum(step_seconds(1, PROMPT + token) for token in range(1000)), rel=1e-3)


def test_responses_wait_for_a_place_and_others_run_along() -> None:
    one = SimulatedFleet(1, 1, lambda _: ([100, 300], ["a"]))
    assert run(one, 2) == pytest.approx([run(one_at_a_time(400), 1)[0], run(one_at_a_time(800), 1)[0]], rel=2e-2)
    together = run(SimulatedFleet(1, 8, lambda _: ([100, 300], ["a"])), 2)
    assert together[0] == together[1] < 300 * step_seconds(4, 4 * (PROMPT + 300))


def one_at_a_time(tokens: int) -> SimulatedFleet:
    return SimulatedFleet(1, 1, lambda _: ([tokens], ["a"]))


def test_prompts_go_to_the_engine_with_the_fewest_and_aborted_ones_leave_it() -> None:
    fleet = SimulatedFleet(2, 8, lambda prompt: ([100 * (int(prompt) + 1)], ["a"]))
    calls = [fleet.generate(prompt=str(number)) for number in range(4)]
    assert [fleet.usable.index(call.engine) for call in calls] == [0, 1, 0, 1]
    assert fleet.wait(calls) == [calls[0]]
    fleet.cancel(calls[2:])
    assert fleet.wait(calls[1:2]) == [calls[1]]
    assert [engine.next_event() for engine in fleet.usable] == [math.inf, math.inf]


def test_the_table_has_all_cases(capsys: pytest.CaptureFixture[str]) -> None:
    generation.main(["--quick", "--rounds=1"])
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [(row[0], row[1]) for row in rows[1:]] == [
        (engines, filtered) for engines in ("8", "64") for filtered in ("0%", "50%", "80%")
    ]
    for _, filtered, seconds, ideal, _, before in rows[1:]:
        assert float(ideal) <= float(seconds) * 1.001
        if filtered != "0%":
            assert float(seconds) < float(before)
