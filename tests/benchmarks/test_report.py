"""The report's benchmark on a minuscule run: every line is there and says whether its bound holds."""

import shutil

import pytest

from benchmarks import report as benchmark


def test_a_line_says_whether_its_bound_holds() -> None:
    assert str(benchmark.Line("open", [3.0, 1.0, 2.0], "s", 2)) == "| open | 2.00 s (1.00 to 3.00) | 2 s | met |"
    assert str(benchmark.Line("open", [3.0], "s", 2)).endswith("| 2 s | missed |")
    assert str(benchmark.Line("open", [3.0], "s")).endswith("|  |  |")


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium on the PATH; apt-get install chromium")
def test_reports_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(["--quick", "--rounds=1"])
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[1:]] == [
        "build", "build, CPU time", "build, peak memory", "file",
        "open", "open at the atlas", "open at a search through all responses",
    ]  # fmt: skip
    assert [row[1].split()[1] for row in rows[1:]] == ["s", "s", "GB", "MB", "s", "s", "s"]
    assert 0.03 < float(rows[4][1].split()[0]) < 1
