"""The metrics file of a run that was killed and resumed."""

import resource
import signal
from pathlib import Path

import pytest

from meds_openrlhf.step_log import StepLog


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
