"""The recorder's benchmark at a minuscule shape: its report is whole, and it refuses logits that do not agree."""

import pytest
import torch

from benchmarks import recorder as benchmark
from meds_openrlhf.features.recorder import Recording

MINUSCULE = [
    "--layers=3", "--hidden=32", "--heads=4", "--kv-heads=2", "--intermediate=48", "--vocabulary=97", "--batch=3",
    "--length=16", "--repeats=3",
]  # fmt: skip


def rows_of(report: str) -> dict[str, list[str]]:
    """The cells after a table row's name, by name."""
    rows = [line.strip("| ").split(" | ") for line in report.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows[1:]}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_reports_three_ways_and_the_locator(dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main([*MINUSCULE, "--dtype", dtype])
    report = capsys.readouterr().out
    rows = rows_of(report)
    assert list(rows) == ["plain", "recorder", "hidden states"]
    assert rows["recorder"][2].endswith("%")
    # 3 layers keep 3 rows of 32 numbers each, and as many unembedding rows: 1.5 kB, and some for the result.
    assert float(rows["recorder"][3].split()[0]) <= 0.002
    assert float(rows["hidden states"][3].split()[0]) > float(rows["recorder"][3].split()[0])
    assert "log-probs are the same to the bit" in report
    assert report.count("Answer locator") == 4


def test_refuses_layer_logits_that_do_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = Recording.finish

    def finish_wrongly(recording: Recording, *arguments: object) -> None:
        finish(recording, *arguments)
        recording.layer_logits += 0.1

    monkeypatch.setattr(Recording, "finish", finish_wrongly)
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        benchmark.main(MINUSCULE)


def test_live_bytes_counts_a_storage_once_and_until_its_last_view_is_gone() -> None:
    given = torch.zeros(1000)
    with benchmark.LiveBytes() as live:
        made = given + 1  # 4,000 bytes; what was there before does not count
        view = made.view(10, 100).t()
        del made
        assert live.live == 4000
        copy = view.contiguous()
        del view
        assert live.live == 4000
        del copy
    assert (live.live, live.peak) == (0, 8000)


def test_overrides_and_what_needs_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    shape, _ = benchmark.parse_arguments(["--shape", "qwen2.5-7b", "--length", "512"])
    assert (shape.layers, shape.length, shape.dtype) == (28, 512, "bfloat16")
    with pytest.raises(SystemExit):
        benchmark.parse_arguments(["--check-sync"])
    assert "needs --device cuda" in capsys.readouterr().err
