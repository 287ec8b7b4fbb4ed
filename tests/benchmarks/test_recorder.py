"""The recorder's benchmark at a minuscule shape: its report is whole, and it refuses log-probs that change."""

from typing import Any

import pytest
import torch

from benchmarks import recorder as benchmark


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_measures_two_passes_that_agree(dtype: torch.dtype) -> None:
    lines = list(benchmark.measure(benchmark.QUICK._replace(dtype=dtype), "cpu", rounds=3))
    assert [line.name for line in lines] == ["plain", "recorder", "recorder's own work"]
    assert all(len(line.values) == 3 and min(line.values) > 0 for line in lines)
    assert max(lines[2].values) < 100


def test_the_command_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(["--quick", "--rounds=1"])
    assert "| recorder's own work | " in capsys.readouterr().out


def test_refuses_log_probs_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded_pass = benchmark.recorded_pass

    def changed(*arguments: Any) -> benchmark.Pass:
        log_probs, seconds = recorded_pass(*arguments)
        return log_probs + 0.1, seconds

    monkeypatch.setattr(benchmark, "recorded_pass", changed)
    with pytest.raises(AssertionError, match="the recorder changes the log-probs"):
        benchmark.main(["--quick"])
