"""Which engines are used, from what they say of themselves."""

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from meds_openrlhf.runtime.errors import RunLostError
from meds_openrlhf.runtime.losses import actor_table
from meds_openrlhf.training.step import engine_fleet
from meds_openrlhf.training.step.engine_fleet import EngineFleet, EngineStatus, StaleWeightsError


class Engine:
    """Stands for an engine's handle: its methods do ``call``."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.load = self.generate_responses = SimpleNamespace(remote=call)


class Fleet(EngineFleet):
    """An EngineFleet whose engines are numbers, and say what ``answers`` says; None does not answer."""

    def __init__(self, *answers: EngineStatus | None) -> None:
        self.answers, self.told = list(answers), list[str]()
        super().__init__(list(range(len(answers))), self.told.append)

    def _statuses(self) -> dict[Any, EngineStatus]:
        return {engine: status for engine, status in zip(self._engines, self.answers) if status is not None}


FIRST = EngineStatus("first-0"), EngineStatus("first-1")
SECOND = EngineStatus("second-0", has_weights=False)  # engine 0 was restarted


def test_restarted_engine_waits_for_the_next_sync() -> None:
    fleet = Fleet(*FIRST)
    for _ in range(3):  # as long as nothing is lost, the group stays
        fleet.keep_those_with_weights()
        assert fleet.take_in_restarted() is False
    assert (fleet.usable, fleet.told) == ([0, 1], [])
    fleet.answers[0] = SECOND
    fleet.keep_those_with_weights()
    assert fleet.usable == [1]
    assert fleet.take_in_restarted() is True
    assert fleet.usable == [0, 1]
    fleet.answers[0] = EngineStatus("second-0")
    assert fleet.take_in_restarted() is False
    assert fleet.told == ["vLLM engine 0 is unavailable; continuing with 1 of 2", "vLLM engine 0 is back"]
    fleet.answers[0] = None  # one that is away at a sync leaves the group, and joins it later
    assert [fleet.take_in_restarted(), fleet.take_in_restarted()] == [True, False]
    fleet.answers[:] = EngineStatus("third-0", has_weights=False), None
    fleet.keep_those_with_weights()
    assert fleet.usable == []
    fleet.answers[1] = FIRST[1]
    assert fleet.take_in_restarted() is True
    for lost in (SECOND, None):  # before the first sync
        assert Fleet(lost, FIRST[1]).take_in_restarted() is True


def test_engines_that_do_not_come_back_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_fleet, "RESTART_SECONDS", 0.01)
    monkeypatch.setattr(engine_fleet, "POLL_SECONDS", 0.01)
    with pytest.raises(RunLostError, match="every vLLM engine was lost, and none came back"):
        Fleet(None).take_in_restarted()


class Silent:
    """An engine that never says how it is."""

    async def status(self) -> None:
        await asyncio.sleep(3600)


@pytest.mark.usefixtures("ray_cluster")
def test_an_engine_that_stays_silent_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may miss a sync meanwhile: what it then has are not the policy's weights."""
    monkeypatch.setattr(engine_fleet, "STATUS_SECONDS", 1.0)
    engine = ray.remote(num_cpus=0, max_restarts=1)(Silent).remote()
    ray.get(engine.__ray_ready__.remote())
    fleet = EngineFleet([engine], [].append)
    fleet.keep_those_with_weights()
    assert fleet.usable == []
    while actor_table()[engine._actor_id.hex()]["NumRestarts"] != 1:
        time.sleep(0.1)
    ray.kill(engine)


def test_an_engine_that_waits_to_be_loaded_is_loaded_at_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        fleet.answers[0] = SECOND

    fleet = Fleet(EngineStatus("second-0", has_weights=False, loaded=False), FIRST[1])
    fleet._engines[0] = fleet.usable[0] = engine = Engine(load)
    monkeypatch.setattr(ray, "wait", lambda calls, **_: (calls, []))
    fleet.keep_those_with_weights()
    assert fleet.usable == [1]
    assert fleet.take_in_restarted() is True
    assert fleet.usable == [engine, 1]


@pytest.mark.parametrize("life", ["first-0", "of-long-ago"])
def test_a_late_error_of_an_earlier_life_drops_nobody(life: str) -> None:
    fleet = Fleet(*FIRST)
    fleet.keep_those_with_weights()
    fleet.drop("first-0", ray.exceptions.RayActorError())
    assert fleet.usable == [1]
    fleet.answers[0] = EngineStatus("second-0")
    fleet.keep_those_with_weights()
    fleet.drop(life, ray.exceptions.RayActorError())
    assert fleet.usable == [0, 1]


@pytest.mark.parametrize(
    ("error", "killed"),
    [
        (RuntimeError("the vLLM process inside is gone"), [0]),
        (ray.exceptions.RayActorError(), []),  # Ray is at it already
        (StaleWeightsError(), []),  # of an engine in its next life, which shall live
    ],
)
def test_only_an_actor_that_outlives_its_engine_is_killed(
    error: Exception, killed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    monkeypatch.setattr(ray, "kill", lambda engine, no_restart: found.append(engine))
    fleet = Fleet(*FIRST)
    fleet.keep_those_with_weights()
    fleet.drop("first-0", error)
    assert fleet.usable == [1]
    assert found == killed


class DeadTool:
    """Stands for an actor of a user's agent."""

    def ask(self, other: Any) -> None:
        ray.get(other.ask.remote(None))


def error_of(call: Any) -> Exception:
    with pytest.raises(ray.exceptions.RayError) as raised:
        ray.get(call)
    return raised.value


@pytest.mark.usefixtures("ray_cluster")
def test_only_the_loss_of_its_own_engines_is_a_loss() -> None:
    engine, tool, asking = (ray.remote(num_cpus=0)(DeadTool).remote() for _ in range(3))
    ray.get([one.__ray_ready__.remote() for one in (engine, tool, asking)])
    fleet = EngineFleet([engine], print)
    for actor in (engine, tool):
        ray.kill(actor)
        while actor_table()[actor._actor_id.hex()]["State"] != "DEAD":
            time.sleep(0.1)
    assert fleet.is_loss(error_of(engine.ask.remote(None)))
    assert fleet.is_loss(error_of(asking.ask.remote(engine)))  # as the policy's rank 0 does
    assert not fleet.is_loss(error_of(tool.ask.remote(None)))
    assert not fleet.is_loss(error_of(asking.ask.remote(tool)))
    assert not fleet.is_loss(ValueError())


def test_a_prompt_goes_to_the_engine_with_the_fewest(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = EngineFleet([Engine(lambda prompt, number=number: (number, prompt)) for number in range(3)], print)
    calls = [fleet.generate(prompt=str(number)) for number in range(7)]
    assert [number for number, _ in calls] == [0, 1, 2, 0, 1, 2, 0]
    cancelled: list[Any] = []
    ours = SimpleNamespace(get=lambda call: [call], cancel=cancelled.append, wait=lambda calls, **_: (calls, []))
    monkeypatch.setattr(engine_fleet, "ray", ours)
    assert fleet.responses(calls[1]) == [(1, "1")]
    fleet.cancel(calls[2::3])
    assert cancelled == [(2, "2"), (2, "5")]
    assert [fleet.generate(prompt=prompt)[0] for prompt in "xyz"] == [2, 1, 2]  # they had 3, 1 and 0
