"""The recorder's benchmark at a minuscule shape: its report is whole, and it refuses logits that do not agree."""

from dataclasses import replace

import pytest
import torch

from benchmarks import recorder as benchmark
from meds_openrlhf.features.recorder import Recording


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_measures_three_passes_that_agree(dtype: torch.dtype) -> None:
    lines = list(benchmark.measure(replace(benchmark.QUICK, dtype=dtype), "cpu", rounds=3))
    assert [line.name for line in lines] == ["plain", "recorder", "hidden states", "recorder's own work"]
    assert all(len(line.values) == 3 and min(line.values) > 0 for line in lines)
    assert max(lines[3].values) < 100


def test_the_command_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(["--quick", "--rounds=1"])
    assert "| recorder's own work | " in capsys.readouterr().out


def test_refuses_layer_logits_that_do_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = Recording.finish

    def finish_wrongly(recording: Recording, *arguments: object) -> None:
        finish(recording, *arguments)
        recording.layer_logits += 0.1

    monkeypatch.setattr(Recording, "finish", finish_wrongly)
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        benchmark.main(["--quick"])
