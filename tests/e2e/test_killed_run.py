"""A run that an earlier version trained and that was killed is resumed: `tests/data/killed_run.tar.xz`.

It has a checkpoint of step 4 and complete steps up to 6, without checksums in its rollout logs.
"""

import json
from pathlib import Path

import pytest

from meds_openrlhf.memory.stored import open_memory, verify_memory
from meds_openrlhf.step_log import StepLog
from tests.e2e.conftest import MEDS, finished
from tests.e2e.runs import Run, require_memory_at_work
from tests.fuzz.kinds import unpack_killed_run


def test_a_killed_run_of_an_earlier_version_is_resumed(
    tmp_path: Path, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = unpack_killed_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = StepLog(paths.metrics).read()
    assert [line["step"] for line in before][-1] >= 6
    rows = open_memory(paths.root).table().to_pylist()
    resume = [*MEDS, "train", "run/config.yaml", "--resume"]
    refused = finished(resume, cluster)
    assert refused.returncode == 2
    assert "ds.param_dtype=fp32: the checkpoint was saved with 'bf16'. Resume with that." in refused.stderr
    ended = finished([*resume, "--ds.param_dtype=bf16"], cluster)
    assert ended.returncode == 0
    assert "resuming after step 4, up to step 8" in ended.stdout
    after = StepLog(paths.metrics).read()
    assert [line["step"] for line in after] == [*range(1, 9)]
    assert after[:4] == before[:4]
    memory = open_memory(paths.root)
    assert verify_memory(memory).damage == []
    assert [row for row in memory.table().to_pylist() if row["step"] <= 4] == [row for row in rows if row["step"] <= 4]
    assert json.loads((paths.complete / "global_step8").read_text())["step"] == 8
    assert paths.rollout_steps() == [*range(1, 9)]
    require_memory_at_work(Run(paths))
