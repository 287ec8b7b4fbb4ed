"""Who belongs to a run, and what is said of one that is gone."""

import os
import signal
import time
from typing import Any

import pytest
import ray

from meds_openrlhf.runtime import losses
from meds_openrlhf.runtime.losses import Member, actors_of_this_job, first_loss, loss_behind
from tests.processes import wait_until

pytestmark = pytest.mark.usefixtures("ray_cluster")


class Rank:
    def wait_for(self, other: Any) -> None:
        ray.get(other.work.remote())

    def work(self) -> None:
        time.sleep(60)

    def fail(self) -> None:
        raise ValueError("a defect")


class Generator(Rank):
    pass


class Broken:
    def __init__(self) -> None:
        raise RuntimeError("out of memory")

    def work(self) -> None:
        raise AssertionError("never there")


def start(cls: type, **options: Any) -> Any:
    actor = ray.remote(num_cpus=0, **options)(cls).remote()
    ray.get(actor.__ray_ready__.remote())
    return actor


def process_of(actor: Any) -> int:
    return ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))


def is_started_again(actor: Any, first: int) -> bool:
    try:
        return process_of(actor) != first
    except ray.exceptions.RayError:  # between both
        return False


def error_of(call: Any) -> Exception:
    with pytest.raises(ray.exceptions.RayError) as raised:
        ray.get(call)
    return raised.value


def as_member(name: str, actor: Any, vital: bool = True) -> Member:
    return Member(name, actor._actor_id.hex(), vital)


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """An explanation that does not come is not waited for."""
    monkeypatch.setattr(losses, "EXPLANATION_SECONDS", 0.5)


def test_loss_names_the_lost_member_and_not_who_waited_for_it() -> None:
    trainer, lost, other = start(Rank), start(Rank), start(Rank)
    known = [as_member("trainer", trainer), as_member("policy rank 3", lost), as_member("policy rank 1", other)]
    process = process_of(lost)
    call = trainer.wait_for.remote(lost)
    os.kill(process, signal.SIGKILL)
    for error in (error_of(call), error_of(other.fail.remote())):
        assert str(loss_behind(error, known)).startswith(f"policy rank 3 was lost: process {process} on ")


@pytest.mark.usefixtures("_soon")
def test_one_that_the_run_can_do_without_is_named_where_its_loss_ended_a_call() -> None:
    engine = start(Rank)
    ray.kill(engine)
    error = error_of(engine.work.remote())
    known = [as_member("vLLM engine 2", engine, vital=False)]
    assert first_loss(known) is None
    assert str(loss_behind(error, known)).startswith("vLLM engine 2 was lost: process ")
    assert str(loss_behind(error, [])).startswith("Rank was lost: process ")


def test_one_that_ray_starts_again_is_no_loss() -> None:
    rank = start(Rank, max_restarts=1)
    first = process_of(rank)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: is_started_again(rank, first))
    assert first_loss([as_member("policy rank 0", rank)]) is None


@pytest.mark.usefixtures("_soon")
def test_defects_are_no_losses() -> None:
    rank = start(Rank)
    assert loss_behind(error_of(rank.fail.remote()), [as_member("policy rank 0", rank)]) is None
    broken = ray.remote(num_cpus=0)(Broken).remote()
    assert loss_behind(error_of(broken.work.remote()), [as_member("vLLM engine 0", broken)]) is None


def test_all_actors_of_this_driver_are_known_by_their_class_and_some_by_a_name() -> None:
    named, other = start(Generator), start(Rank)
    found = {member.actor_id: member for member in actors_of_this_job({"Generator": "generating half"})}
    assert found[named._actor_id.hex()] == as_member("generating half", named)
    identity = other._actor_id.hex()
    assert found[identity] == as_member(f"Rank {identity[:8]}", other, vital=False)
