"""The metrics file of a run that was killed and resumed, and the console's lines."""

import io
import resource
import signal
from pathlib import Path

import pytest

from meds_openrlhf.tracking.console import RunConsole, step_line
from meds_openrlhf.tracking.step_log import StepLog


def test_a_resumed_run_has_every_step_once_and_half_a_line_never(tmp_path: Path) -> None:
    log = StepLog(tmp_path / "metrics.jsonl")
    assert log.read() == []
    for step in (1, 2, 3):
        log.append(step, {"reward": float(step)})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "rew')  # killed while it wrote
    log.cut_after(2)
    log.append(3, {"reward": 30.0})
    assert log.read() == [{"step": 1, "reward": 1.0}, {"step": 2, "reward": 2.0}, {"step": 3, "reward": 30.0}]
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "rew')
    log.append(4, {})
    assert [line["step"] for line in log.read()] == [1, 2, 3, 4]


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    """A file may only grow to 100 bytes: the second line does not fit, the third, shorter one does."""
    log = StepLog(tmp_path / "clusters.jsonl")
    log.append(1, {"text": "x" * 40})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            log.append(2, {"text": "y" * 80})
        log.append(3, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [line["step"] for line in log.read()] == [1, 3]


def test_the_console_tells_the_time_left() -> None:
    stream = io.StringIO()
    console = RunConsole(stream)
    console._total = 40
    for step, seconds in ((1, 50.0), (2, 3.0), (3, 3.0)):
        console.step(step, {"rollout/reward_mean": 0.5, "timing/step_total": seconds})
    assert stream.getvalue().splitlines()[-1] == "step  3/40 | reward 0.500 | 3.0 s, 0:01:51 left"


def test_the_step_line_with_a_memory() -> None:
    metrics = {
        "meds/reward_raw": 0.5, "meds/reward_shaped": 0.45, "meds/penalized_share": 0.25, "meds/rows": 42.0,
        "meds/clusters": 6.0, "meds/noise_share": 0.1, "meds/eigen_ratio_step": 0.66, "timing/step_total": 2.0,
    }  # fmt: skip
    assert step_line(7, 40, metrics) == (
        "step  7/40 | reward 0.500 shaped 0.450 | penalized  25% | 42 rows 6 clusters 10% noise"
        " | eigen ratio 0.66 | 2.0 s"
    )
