"""What a report of a large run costs: seconds and memory to build, bytes of the file, seconds until a browser shows it.

The run is made up (`benchmarks.synthetic_run`): 200 steps of 512 prompts out of 5,000 with 16 rollouts each, the
memory's rows of all wrong ones and a log of rollouts with sampled texts of 1,500 characters. Building is `meds report`
in a process of its own, imports and all; opening is headless Chromium from a file, until what was asked for is drawn.
From the repository's root (the run takes a minute to write and some 400 MB):

    python -m benchmarks.report --rounds 3
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

from benchmarks.synthetic_run import Shape, write_run

FULL = Shape(steps=200, prompts=5_000, visited=512, samples=16, characters=1_500)
QUICK = Shape(steps=4, prompts=8, visited=4, samples=8, characters=200)
REPORT = [sys.executable, "-m", "meds_openrlhf.cli.main", "report"]


@dataclass(frozen=True)
class Line:
    """One row of the table: values (rounds,) of a quantity in a unit, and how large the median may be."""

    what: str
    values: list[float]
    unit: str
    at_most: float | None = None

    def __str__(self) -> str:
        median, low, high = np.median(self.values), min(self.values), max(self.values)
        bound, verdict = "", ""
        if self.at_most is not None:
            bound, verdict = f"{self.at_most:g} {self.unit}", "met" if median <= self.at_most else "missed"
        return f"| {self.what} | {median:.2f} {self.unit} ({low:.2f} to {high:.2f}) | {bound} | {verdict} |"


def build_seconds(run: Path, output: Path) -> tuple[float, float]:
    """Seconds of one `meds report`, by the clock and of CPU time."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*REPORT, str(run), "--output", str(output)], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - started, cpu


def measure_browser(report: Path, rounds: int) -> list[Line]:
    """Seconds until the overview, a prompt's page by its address, and the end of a search through all responses."""
    views = {
        "#overview": ".card",
        "#atlas": ".list tbody tr",
        "#atlas&q=remainder": "p[role=status][aria-busy=false]",  # set at the search's end
    }
    program = shutil.which("chromium")
    if program is None:
        raise FileNotFoundError("no chromium on the PATH; apt-get install chromium")
    seconds: dict[str, list[float]] = {fragment: [] for fragment in views}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        for _ in range(rounds):
            for fragment, sign in views.items():
                page = browser.new_page()
                page.set_default_timeout(60_000)
                started = time.perf_counter()
                page.goto(f"{report.as_uri()}{fragment}")
                page.wait_for_selector("html[data-ready]")
                page.wait_for_selector(sign)
                seconds[fragment].append(time.perf_counter() - started)
                page.close()
        browser.close()
    return [
        Line("open", seconds["#overview"], "s", 2),
        Line("open at the atlas", seconds["#atlas"], "s"),
        Line("open at a search through all responses", seconds["#atlas&q=remainder"], "s"),
    ]


def main(command_line: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--quick", action="store_true", help="a minuscule run, to see that it works")
    parser.add_argument("--run", type=Path, help="a run folder that is there already, in place of a made-up one")
    arguments = parser.parse_args(command_line)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {arguments.rounds} rounds\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        run = arguments.run or write_run(Path(folder) / "run", QUICK if arguments.quick else FULL).root
        report = Path(folder) / "report.html"
        print("| measured | median (least to most) | at most | |\n|---|---|---|---|")
        seconds = [build_seconds(run, report) for _ in range(arguments.rounds)]
        print(Line("build", [clock for clock, _ in seconds], "s", 30))
        print(Line("build, CPU time", [cpu for _, cpu in seconds], "s"))
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
        print(Line("build, peak memory", [peak], "GB"))
        print(Line("file", [report.stat().st_size / 1e6], "MB", 20))
        print(*measure_browser(report, arguments.rounds), sep="\n")


if __name__ == "__main__":
    main()
