"""What a process is doing, seen from outside while it answers nothing."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

from meds_openrlhf.training.driver import worker
from meds_openrlhf.training.driver.members import Member, actor_table
from meds_openrlhf.training.driver.stacks import collect, stacks_on_this_node
from tests.waiting import wait_until

ARMED = "from meds_openrlhf.training.driver import stacks; stacks.arm(); stacks.arm()"
WAITS = """import time
def waits_for_ever():
    print('ready', flush=True)
    time.sleep(100)
waits_for_ever()"""


def started(program: str) -> subprocess.Popen:
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def test_an_armed_process_answers_and_lives_on() -> None:
    process = started(f"{ARMED}\n{WAITS}")
    try:
        first = stacks_on_this_node([process.pid])[process.pid]
        second = stacks_on_this_node([process.pid])[process.pid]
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    assert "waits_for_ever" in first
    assert second.count("waits_for_ever") == 1  # only what it was asked now


def test_an_unarmed_process_is_never_harmed() -> None:
    process = started(WAITS)
    try:
        seen = stacks_on_this_node([process.pid])[process.pid]
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    assert f"process {process.pid}" in seen


class Busy:
    """An actor that answers no call, in a process that began as all of a run do."""

    def __init__(self) -> None:
        worker.set_up()

    def works_for_ever(self, begun: Path) -> None:
        begun.touch()
        time.sleep(1000)


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("ray_cluster")
def test_a_file_for_every_process_of_the_run(tmp_path: Path) -> None:
    busy, dead = (ray.remote(num_cpus=0)(Busy).remote() for _ in range(2))
    ray.get([busy.__ray_ready__.remote(), dead.__ray_ready__.remote()])
    begun = tmp_path / "begun"
    busy.works_for_ever.remote(begun)
    ray.kill(dead)
    wait_until(begun.exists)
    wait_until(lambda: actor_table()[dead._actor_id.hex()]["State"] == "DEAD")
    names = {"policy rank 0": busy, "policy rank 1": dead}
    members = [Member(name, actor._actor_id.hex(), vital=True) for name, actor in names.items()]
    folder = collect(tmp_path, members)
    assert "works_for_ever" in (folder / "policy-rank-0.txt").read_text()
    assert (folder / "policy-rank-1.txt").read_text() == "not running: DEAD\n"
