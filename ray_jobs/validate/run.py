"""Runs a list of checks in order, and writes what they showed to one Markdown report.

    python ray_jobs/validate/run.py ray_jobs/validate/one_gpu.yaml --report validation.md

A list is a YAML file of checks with a `name`, what it `proves`, what to `look` at, a `command` for the shell, and the
`minutes` after which it is ended. $RUN is an empty folder of this start, which the checks share, so a list can be run
again. While a check runs, its output is shown, and once a second the memory of GPUs and node and the GPUs' use are
read for the report. Exit code 0: all commands succeeded; 1: some did not, and the report says which.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import indent
from typing import IO, Any

import yaml

LINES = 40  # of a command's output that the report keeps
MINUTES = 30.0  # for a check that names none
TOO_LONG = -signal.SIGKILL
QUERY = ["nvidia-smi", "--query-gpu=memory.used,utilization.gpu", "--format=csv,noheader,nounits"]


def main() -> int:
    """Run the list; every check rewrites the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", type=Path, help="a list, e.g. ray_jobs/validate/one_gpu.yaml")
    parser.add_argument("--report", type=Path, default=Path("validation.md"), help="(%(default)s)")
    parser.add_argument("--only", type=int, metavar="N", help="run check N alone")
    parser.add_argument("--folder", type=Path, help="$RUN (default: a new folder in runs/)")
    arguments = parser.parse_args()
    checks = list(enumerate(yaml.safe_load(arguments.checks.read_text(encoding="utf-8")), start=1))
    chosen = [check for check in checks if arguments.only in (None, check[0])]
    if not chosen:
        parser.error(f"there is no check {arguments.only}: the list has {len(checks)}")
    environment = {**os.environ, "RUN": str(_folder(arguments.folder))}
    parts, failed = [_head(arguments.checks, environment["RUN"])], 0
    for number, check in chosen:
        print(f"{number}/{len(checks)} {check['name']}", flush=True)
        started = time.monotonic()
        with Readings() as readings:
            code, output = _run(check["command"], environment, minutes := check.get("minutes", MINUTES))
        failed += code != 0
        reason = f"ended after {minutes:g} minutes" if code == TOO_LONG else f"exit code {code}"
        result = f"FAILED, {reason}" if code else "ok"
        result += f", {(time.monotonic() - started) / 60:.1f} min"
        print(f"    {result}", flush=True)
        parts.append(_section(number, check, result, output, readings))
        arguments.report.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"{failed} of {len(chosen)} failed; {arguments.report}")
    return int(failed > 0)


def _folder(given: Path | None) -> Path:
    if given is None:
        Path("runs").mkdir(exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="validate-", dir="runs")).absolute()
    given.mkdir(parents=True, exist_ok=True)
    return given.absolute()


def _run(command: str, environment: dict[str, str], minutes: float) -> tuple[int, str]:
    """Run a command, showing its output; returns its exit code, `TOO_LONG` if it was ended, and its output."""
    # `timeout` ends all that the command started.
    limited = ["timeout", "--signal=KILL", str(minutes * 60), "bash", "-o", "pipefail", "-c", command]
    running = subprocess.Popen(limited, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert running.stdout is not None
    try:
        output = "".join(_shown(running.stdout))
    except KeyboardInterrupt:  # a training saves its state
        running.send_signal(signal.SIGINT)
        _shown(running.stdout)
        raise
    return running.wait(), output


def _shown(output: IO[bytes]) -> list[str]:
    """Show a command's output as it comes; returns its lines."""
    lines = []
    for line in output:
        lines.append(line.decode(errors="replace"))
        print(f"    | {lines[-1]}", end="", flush=True)
    return lines


class Readings:
    """The largest memory in use and the mean use of each GPU, and the node's memory in use, read once a second."""

    def __init__(self) -> None:
        self._gpus: list[list[tuple[float, float]]] = []
        self._node: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Readings:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _read(self) -> None:
        while True:
            fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
            total, free = (int(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
            self._node.append((total - free) / 2**20)
            try:
                answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=10, check=True).stdout
                self._gpus.append([tuple(map(float, line.split(","))) for line in answer.splitlines()])  # type: ignore[misc]
            except (OSError, subprocess.SubprocessError, ValueError):
                pass  # a machine without a GPU
            if self._ended.wait(1.0):
                return

    def lines(self) -> Iterator[str]:
        """Yield what was read, in words."""
        yield f"Node: {min(self._node):.1f} to {max(self._node):.1f} GB of memory in use."
        for number, values in enumerate(zip(*self._gpus)):
            used, busy = zip(*values)
            share = sum(busy) / len(busy)
            yield f"GPU {number}: up to {max(used) / 1024:.1f} GB in use, busy {share:.0f} % of the time."


def _head(checks: Path, folder: str) -> str:
    now = time.strftime("%Y-%m-%d %H:%M")
    parts = [f"# Validation: {checks.stem}", f"{now}, {platform.node()}, Python {platform.python_version()}, {folder}"]
    for command in (["git", "log", "--oneline", "-1"], ["nvidia-smi", "-L"]):
        with suppress(OSError, subprocess.SubprocessError):
            answer = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
            parts.append(indent(answer.strip(), "    "))
    return "\n\n".join(filter(None, parts))


def _section(number: int, check: dict[str, Any], result: str, output: str, readings: Readings) -> str:
    # A progress bar writes its states one over the other: only the last one stays.
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in output.rstrip("\n").split("\n")][-LINES:]
    listing = [*(f"    $ {line}" for line in check["command"].strip().splitlines()), *(f"    {line}" for line in lines)]
    words = [f"## {number}. {check['name']}: {result}", f"Proves: {check['proves']}", f"Look at: {check['look']}"]
    return "\n\n".join([*words, "\n".join(readings.lines()), "\n".join(listing)])


if __name__ == "__main__":
    sys.exit(main())
