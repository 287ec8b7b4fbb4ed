"""What the end-to-end tests ask of a run: its steps, its memory, its processes."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest

from meds_openrlhf.memory.stored import open_memory, verify_memory
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.step_log import StepLog

# Of a run by `command`: 16 prompts, 4 a step, 2 episodes; 8 responses to each prompt.
EPOCH = 4
STEPS = 8
SAMPLES = 32


@dataclass(frozen=True)
class Run:
    """A `meds train` that has ended."""

    paths: RunPaths
    output: str = ""

    @property
    def steps(self) -> list[dict[str, float]]:
        return StepLog(self.paths.metrics).read()


def wait_for_step(log: StepLog, step: int, process: subprocess.Popen) -> None:
    while not any(line["step"] >= step for line in log.read()):
        assert process.poll() is None, process.communicate()[0][-4000:]
        time.sleep(0.05)


def processes_of(run_dir: Path) -> list[int]:
    """Living processes that have anything to do with the run: their command line or open files name its folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                links = [_target_of(link) for link in (entry / "fd").iterdir()]
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(run_dir) in words or any(link.startswith(str(run_dir)) for link in links):
                found.append(int(entry.name))
    return found


def _target_of(link: Path) -> str:
    """Empty for a file that its process, which lives on, has closed meanwhile."""
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


def ray_process(driver: int, title: str) -> psutil.Process:
    """The last one of the driver's Ray workers that run the actor ``title``."""
    found = []
    for process in psutil.Process(driver).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # others may go while one looks
            if process.name().startswith(f"ray::{title}"):
                found.append(process)
    return found[-1]


def require_all_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=60)
    left = [one.as_dict(["pid", "name", "status", "cmdline"]) for one in alive if one.status() != psutil.STATUS_ZOMBIE]
    assert not left, left


def read_memory(paths: RunPaths) -> pa.Table:
    """All rows, with pyarrow alone."""
    files = sorted(paths.memory.root.glob("shard-*/*.arrow"))
    table = pa.concat_tables([pa.ipc.open_stream(path.read_bytes()).read_all() for path in files])
    return table.sort_by([("step", "ascending"), ("sample", "ascending")])


def rows_until(table: pa.Table, step: int) -> pa.Table:
    return table.filter(pa.compute.less_equal(table.column("step"), step))


def require_memory_at_work(run: Run) -> None:
    """Rows of every step are on the disk once, and wrong rollouts of prompts that came again were penalized."""
    rows = read_memory(run.paths)
    steps = run.steps
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    assert rows.num_rows == steps[-1]["meds/rows"] > 20
    assert len({(row["step"], row["sample"]) for row in rows.select(["step", "sample"]).to_pylist()}) == rows.num_rows
    sizes, when = rows.column("cluster_size").to_numpy(), rows.column("step").to_numpy()
    assert sizes[when <= EPOCH].max() == 0  # first visits
    assert sizes[when > EPOCH].max() >= 2
    for step in steps:
        penalties = np.minimum(0.1 * np.log(sizes[when == step["step"]] + 1), 0.2)
        assert step["meds/penalty_mean"] == pytest.approx(penalties.sum() / SAMPLES, abs=1e-6)
        difference = step["meds/reward_raw"] - step["meds/reward_shaped"]
        assert difference == pytest.approx(step["meds/penalty_mean"], abs=1e-6)
        assert step["rollout/reward_mean"] == pytest.approx(step["meds/reward_raw"], abs=1e-6)
    assert any(step["meds/penalized_share"] > 0 for step in steps)
    assert verify_memory(open_memory(run.paths.root)).damage == []


def require_every_prompt_once_an_epoch(rows: pa.Table) -> None:
    """No prompt came twice within an epoch, nor more than four in a step: so none was left out."""
    visits = {(row["prompt"], row["step"]) for row in rows.select(["prompt", "step"]).to_pylist()}
    for epoch in (range(1, EPOCH + 1), range(EPOCH + 1, STEPS + 1)):
        prompts = [prompt for prompt, step in visits if step in epoch]
        assert len(set(prompts)) == len(prompts) > 10
    assert max(sum(step == other for _, other in visits) for step in range(1, STEPS + 1)) <= 4
