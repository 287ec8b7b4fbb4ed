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
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import indent
from typing import IO, Any

import yaml

LINES = 40  # of a command's output that the report keeps
MINUTES = 30.0  # for a check that names none
TOO_LONG = -signal.SIGKILL
# A line for the node and one for each GPU: its name, MiB in use, and percent of the time in use.
SAMPLE = """awk '/MemTotal/ {total = $2} /MemAvailable/ {print "Node," (total - $2) / 1024 ",0"}' /proc/meminfo
nvidia-smi --query-gpu=index,memory.used,utilization.gpu --format=csv,noheader,nounits 2>&- | sed 's/^/GPU /'"""


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
        with readings() as read:
            code, output = _run(check["command"], environment, minutes := check.get("minutes", MINUTES))
        failed += code != 0
        reason = f"ended after {minutes:g} minutes" if code == TOO_LONG else f"exit code {code}"
        result = f"FAILED, {reason}" if code else "ok"
        result += f", {(time.monotonic() - started) / 60:.1f} min"
        print(f"    {result}", flush=True)
        parts.append(_section(number, check, result, output, read))
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


@contextmanager
def readings() -> Iterator[list[str]]:
    """Read the use of memory and GPUs while the block runs; after it, the list has what was read, in words."""
    words: list[str] = []
    with tempfile.TemporaryFile("w+") as file:
        every_second = f"while :; do {SAMPLE}; sleep 1; done"
        sampler = subprocess.Popen(["bash", "-c", every_second], stdout=file, start_new_session=True)
        try:
            yield words
        finally:
            os.killpg(sampler.pid, signal.SIGKILL)
            sampler.wait()
        subprocess.run(["bash", "-c", f"echo; {SAMPLE}"], stdout=file, check=False)  # also of a check of milliseconds
        file.seek(0)
        read = [line.split(",") for line in file.read().splitlines() if line.count(",") == 2 and "N/A" not in line]
    for place in dict.fromkeys(name for name, *_ in read):
        used, busy = zip(*((float(mib) / 1024, float(share)) for name, mib, share in read if name == place))
        share = f", busy {sum(busy) / len(busy):.0f} % of the time" if place.startswith("GPU") else ""
        words.append(f"{place}: {min(used):.1f} to {max(used):.1f} GB of memory in use{share}.")


def _head(checks: Path, folder: str) -> str:
    now = time.strftime("%Y-%m-%d %H:%M")
    parts = [f"# Validation: {checks.stem}", f"{now}, {platform.node()}, Python {platform.python_version()}, {folder}"]
    for command in (["git", "log", "--oneline", "-1"], ["nvidia-smi", "-L"]):
        with suppress(OSError, subprocess.SubprocessError):
            answer = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
            parts.append(indent(answer.strip(), "    "))
    return "\n\n".join(filter(None, parts))


def _section(number: int, check: dict[str, Any], result: str, output: str, read: list[str]) -> str:
    # A progress bar writes its states one over the other: only the last one stays.
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in output.rstrip("\n").split("\n")][-LINES:]
    listing = [*(f"    $ {line}" for line in check["command"].strip().splitlines()), *(f"    {line}" for line in lines)]
    words = [f"## {number}. {check['name']}: {result}", f"Proves: {check['proves']}", f"Look at: {check['look']}"]
    return "\n\n".join([*words, "\n".join(read), "\n".join(listing)])


if __name__ == "__main__":
    sys.exit(main())
