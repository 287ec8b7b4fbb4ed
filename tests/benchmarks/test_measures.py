"""What the benchmark of generation measures with: engines in simulated time."""

import math

import pytest

from benchmarks.generation import PROMPT, SimulatedFleet, step_seconds


def run(fleet: SimulatedFleet, prompts: int) -> list[float]:
    """The times at which as many prompts are answered."""
    left, times = [fleet.generate(prompt=str(number)) for number in range(prompts)], list[float]()
    while left:
        for call in fleet.wait(left):
            left.remove(call)
            times.append(fleet.now)
    return times


def alone(tokens: int) -> float:
    """The seconds of a response beside no other."""
    (seconds,) = run(SimulatedFleet(1, 1, lambda _: ([tokens], ["a"])), 1)
    return seconds


def test_responses_take_their_steps_wait_for_a_place_and_run_along() -> None:
    assert alone(1000) == pytest.approx(sum(step_seconds(1, PROMPT + token) for token in range(1000)), rel=1e-3)
    one = SimulatedFleet(1, 1, lambda _: ([100, 300], ["a"]))
    assert run(one, 2) == pytest.approx([alone(400), alone(800)], rel=2e-2)
    together = run(SimulatedFleet(1, 8, lambda _: ([100, 300], ["a"])), 2)
    assert together[0] == together[1] < 300 * step_seconds(4, 4 * (PROMPT + 300))


def test_prompts_go_to_the_engine_with_the_fewest_and_aborted_ones_leave_it() -> None:
    fleet = SimulatedFleet(2, 8, lambda prompt: ([100 * (int(prompt) + 1)], ["a"]))
    calls = [fleet.generate(prompt=str(number)) for number in range(4)]
    assert [fleet.usable.index(call.engine) for call in calls] == [0, 1, 0, 1]
    assert fleet.wait(calls) == [calls[0]]
    fleet.cancel(calls[2:])
    assert fleet.wait(calls[1:2]) == [calls[1]]
    assert [engine.next_event() for engine in fleet.usable] == [math.inf, math.inf]
