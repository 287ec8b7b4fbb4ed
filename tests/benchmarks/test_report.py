"""The report's benchmark on a minuscule run: every line is there and says whether its bound holds."""

import shutil

import pytest

from benchmarks import report as benchmark


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium on the PATH; apt-get install chromium")
def test_reports_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(["--quick", "--rounds=1"])
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[1:]] == [
        "build", "build, peak memory", "file", "open", "open at a search through all responses",
    ]  # fmt: skip
    assert [row[1].split()[-1] for row in rows[1:]] == ["s", "GB", "MB", "s", "s"]
    assert 0.03 < float(rows[3][1].split()[0]) < 1
