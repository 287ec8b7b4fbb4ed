"""Every command of docs/benchmarks.md at its smallest size: its table is whole and makes sense."""

import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.table import Line

PAGE = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
EQUAL = "its labels equal to the reference's where 2 of 3 agree"
MEMORY = [f"{name}, 16 stored" for name in ("step", EQUAL, "clustering")]
MEMORY += [f"{what}, 8 prompts with 16 responses" for what in ("step with visits", "visits alone")]
MEMORY += ["snapshot, 32 prompts of 16 rows", "restart, 512 rows in 8 files"]
FIRST_COLUMN = {
    "generation": ["8"] * 3 + ["64"] * 3,
    "memory": MEMORY,
    "recorder": ["plain", "recorder", "recorder's own work"],
    "report": ["build", "build, peak memory", "file", "open"],
    "log_probs": [
        f"32 responses of 64 tokens, log-prob: {what}" for what in ("without", "its own", "and the likeliest")
    ],
    "step_host_time": [
        *("generation calls", "train step", "total", "generalized advantages of 11 responses"),
        "256 samples through a queue",
    ],
}


IN_PROCESSES = ("log_probs", "step_host_time")  # of their own: they start vLLM, or Ray, which takes minutes
NAMES = [
    pytest.param(name, marks=pytest.mark.slow if name in IN_PROCESSES else ())
    for name in sorted(set(re.findall(r"python -m benchmarks\.(\w+)", PAGE)))
]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_of_the_page_prints_its_table(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    if name == "report" and shutil.which("chromium") is None:
        pytest.skip("no chromium on the PATH; apt-get install chromium")
    if name in IN_PROCESSES:
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}", "--quick", "--rounds=1"], check=True)
    else:
        import_module(f"benchmarks.{name}").main(["--quick", "--rounds=1"])
    table = [line.strip("| ").split(" | ") for line in capfd.readouterr().out.splitlines() if line.startswith("| ")]
    rows = table[1:]
    assert [row[0] for row in rows] == FIRST_COLUMN[name]
    if name == "generation":
        for _, filtered, seconds, ideal, _, before in rows:
            assert float(ideal) <= float(seconds) * 1.001
            assert filtered == "0%" or float(seconds) < float(before)
        return
    assert all(float(row[1].split()[0].replace(",", "")) > 0 for row in rows)
    if name == "memory":
        assert rows[1][1] == "100 (100 to 100) %"
    if name == "report":
        assert [row[1].split()[-1] for row in rows] == ["s", "GB", "MB", "s"]
        assert 0.03 < float(rows[2][1].split()[0]) < 1


def test_a_line_says_whether_its_bounds_hold() -> None:
    times, compared = [40.0, 10.0, 20.0], [1000.0, 1000.0, 4000.0]
    within = Line("step", times, "ms", compared, at_most=20, at_most_ratio=0.01)
    assert str(within) == "| step | 20 (15 to 30) ms | 1,000 (1,000 to 2,500) ms | 0.01 | 0.01 x, 20 ms | met |"
    assert str(Line("step", times, "ms", compared, at_most_ratio=0.009)).endswith("| 0.009 x | missed |")
    assert str(Line("step", times, at_most=19)).endswith("|  |  | 19 ms | missed |")
    assert str(Line("step", times, "s")).endswith(" s |  |  |  |  |")
