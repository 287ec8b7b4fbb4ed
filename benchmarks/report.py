"""What a report of a large run costs: seconds and memory to build, bytes of the file, seconds until a browser shows it.

The run is made up (`benchmarks.synthetic_run`): 200 steps of 512 prompts out of 5,000 with 16 rollouts each, the
memory's rows of all wrong ones and a log of rollouts with sampled texts of 1,500 characters. Building is `meds report`
in a process of its own, imports and all; opening is headless Chromium from a file, until what was asked for is drawn.
From the repository's root (the run takes a minute to write and some 400 MB):

    python -m benchmarks.report --rounds 3
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import sync_playwright

from benchmarks.synthetic_run import Shape, write_run
from benchmarks.table import HEADER, Line, machine, make_parser

FULL = Shape(steps=200, prompts=5_000, visited=512, characters=1_500)
QUICK = Shape(steps=4, prompts=8, visited=4, characters=200)
VIEWS = {  # and what is there once each is drawn
    "#overview": ".card",
    "#atlas&q=remainder": "p[role=status][aria-busy=false]",  # set at the search's end
}


def build_seconds(run: Path, output: Path) -> float:
    """Return the seconds of one `meds report`."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "meds_openrlhf.cli.main", "report", str(run), "--output", str(output)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def measure_browser(report: Path, rounds: int) -> Iterator[Line]:
    """Yield seconds until the overview and the end of a search through all responses are there."""
    program = shutil.which("chromium")
    if program is None:
        raise FileNotFoundError("no chromium on the PATH; apt-get install chromium")
    seconds: dict[str, list[float]] = {fragment: [] for fragment in VIEWS}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        for _ in range(rounds):
            for fragment, sign in VIEWS.items():
                page = browser.new_page()
                page.set_default_timeout(60_000)
                started = time.perf_counter()
                page.goto(f"{report.as_uri()}{fragment}")
                page.wait_for_selector("html[data-ready]")
                page.wait_for_selector(sign)
                seconds[fragment].append(time.perf_counter() - started)
                page.close()
        browser.close()
    yield Line("open", seconds["#overview"], "s", at_most=2)
    yield Line("open at a search through all responses", seconds["#atlas&q=remainder"], "s")


def main(command_line: list[str] | None = None) -> None:
    """Print the table."""
    arguments = make_parser(__doc__, rounds=3).parse_args(command_line)
    print(machine(), HEADER, sep="\n")
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", QUICK if arguments.quick else FULL).root
        report = Path(folder) / "report.html"
        print(Line("build", [build_seconds(run, report) for _ in range(arguments.rounds)], "s", at_most=30))
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
        print(Line("build, peak memory", [peak], "GB"))
        print(Line("file", [report.stat().st_size / 1e6], "MB", at_most=20))
        print(*measure_browser(report, arguments.rounds), sep="\n")


if __name__ == "__main__":
    main()
