"""A run that is killed at a bad moment and resumed: nothing before the checkpoint is lost, nothing counts twice."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pyarrow as pa

from meds_openrlhf.memory.tools.stored_memory import open_memory
from meds_openrlhf.memory.tools.verify import verify_memory
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.step_log import StepLog
from tests.e2e.conftest import STEPS, command

CHECKPOINT = 3  # in the middle of an epoch


def start(assets: Path, run_dir: Path, *overrides: str) -> subprocess.Popen:
    """`meds train` with a Ray cluster of its own, as on a machine where it is the only job."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.Popen(
        command(assets, run_dir, *overrides),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for_step(log: StepLog, step: int, process: subprocess.Popen) -> None:
    while not any(line["step"] >= step for line in log.read()):
        assert process.poll() is None, process.communicate()[0][-4000:]
        time.sleep(0.05)


def read_memory(paths: RunPaths) -> pa.Table:
    files = sorted(paths.memory.root.glob("shard-*/*.arrow"))
    table = pa.concat_tables([pa.ipc.open_stream(path.read_bytes()).read_all() for path in files])
    return table.sort_by([("step", "ascending"), ("sample", "ascending")])


def upto(table: pa.Table, step: int) -> pa.Table:
    return table.filter(pa.compute.less_equal(table.column("step"), step))


def processes_of(run_dir: Path) -> list[int]:
    """Living processes that have anything to do with the run: their command line or open files name its folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                links = [target_of(link) for link in (entry / "fd").iterdir()]
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(run_dir) in words or any(link.startswith(str(run_dir)) for link in links):
                found.append(int(entry.name))
    return found


def target_of(link: Path) -> str:
    """Empty for a file that its process, which lives on, has closed meanwhile."""
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


def test_kill_and_resume(assets: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    paths = RunPaths(run_dir)
    log = StepLog(paths.metrics)
    first = start(assets, run_dir, f"--ckpt.save_steps={CHECKPOINT}")
    wait_for_step(log, CHECKPOINT + 1, first)
    os.kill(first.pid, signal.SIGKILL)
    first.wait(30)
    deadline = time.monotonic() + 60
    while processes_of(run_dir) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert processes_of(run_dir) == []
    before, metrics_before = read_memory(paths), log.read()  # which nobody writes any more
    assert before.column("step").to_numpy().max() > CHECKPOINT  # rows that the checkpoint does not know

    # With another number of shards: the prompts are divided anew.
    second = start(assets, run_dir, f"--ckpt.save_steps={CHECKPOINT}", "--resume", "--meds.memory.shards=3")
    output = second.communicate(timeout=300)[0]
    assert second.returncode == 0, output[-4000:]
    assert f"going on after step {CHECKPOINT}" in output

    steps = log.read()
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    assert steps[:CHECKPOINT] == metrics_before[:CHECKPOINT]
    after = read_memory(paths)
    assert upto(after, CHECKPOINT).equals(upto(before, CHECKPOINT))
    assert verify_memory(open_memory(run_dir)).damage == []
    pairs = list(zip(after.column("step").to_pylist(), after.column("sample").to_pylist()))
    assert len(set(pairs)) == len(pairs) == steps[-1]["meds/rows"]
    # An epoch of 16 prompts is 4 steps: none came twice within one, nor more than 4 in a step, so none was skipped.
    visits = {(row["prompt"], row["step"]) for row in after.select(["prompt", "step"]).to_pylist()}
    for epoch in (range(1, 5), range(5, 9)):
        prompts = [prompt for prompt, step in visits if step in epoch]
        assert len(set(prompts)) == len(prompts) > 10
    assert max(sum(step == other for _, other in visits) for step in range(1, STEPS + 1)) <= 4
    # Resumed at step 3, the order of the prompts is that of the run that was killed.
    killed = {(row["prompt"], row["step"]) for row in before.select(["prompt", "step"]).to_pylist()}
    steps_of = {prompt: step for prompt, step in visits if step <= 4}
    assert all(steps_of.get(prompt, step) == step for prompt, step in killed if step <= 4)
    assert {path.name for path in paths.complete.iterdir()} == {"global_step3", "global_step6"}
    assert {path.stem for path in paths.memory.snapshots.iterdir()} == {"global_step3", "global_step6"}
