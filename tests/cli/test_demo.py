"""What the demo asks for on machines with and without a GPU, and its summary."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from meds_openrlhf.cli import demo
from meds_openrlhf.cli.main import main
from meds_openrlhf.config import RunConfig
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.runtime import devices
from meds_openrlhf.tracking.step_log import StepLog


@pytest.mark.parametrize(("has_gpu", "mode"), [(True, "auto"), (False, "flags")])
def test_one_gpu_is_enough(has_gpu: bool, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Started(Exception):
        pass

    def start(config: RunConfig, **_options: bool) -> None:
        assert config.meds.placement.mode == mode
        raise Started

    monkeypatch.setattr(devices, "has_cuda", lambda: has_gpu)
    monkeypatch.setattr(demo, "make_arithmetic", lambda _folder: SimpleNamespace())
    monkeypatch.setattr(demo, "train", start)
    with pytest.raises(Started):
        main(["demo"])


def test_the_summary_compares_first_and_last_steps(tmp_path: Path) -> None:
    assert demo.summarize(RunPaths(tmp_path)) == f"{tmp_path}: no step was finished"
    log = StepLog(tmp_path / "metrics.jsonl")
    for step in range(1, 7):
        metrics = {"rollout/reward_mean": step / 10, "meds/rows": 5.0, "meds/prompts": 2.0, "meds/clusters": 1.0}
        log.append(step, {**metrics, "meds/bytes": 2e6, **({"meds/eigen_ratio_all": 0.5} if step > 5 else {})})
    text = demo.summarize(RunPaths(tmp_path))
    assert "                        first 5  last 5" in text
    assert "reward, raw               0.300   0.400" in text
    assert "top-1 eigen ratio, all       --   0.500" in text
    assert "memory   5 rollouts of 2 prompts, 1 clusters, 2.0 MB" in text
