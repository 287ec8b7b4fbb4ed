"""Runs a list of checks in order, and writes what they showed to one Markdown report.

    python ray_jobs/validate/run.py ray_jobs/validate/one_gpu.yaml --report validation.md

A list is a YAML file of checks with a `name`, what it `proves`, what to `look` at, and a `command` for the shell. Exit
code 0: all commands succeeded; 1: some did not, and the report says which.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

LINES = 40  # of a command's output that the report keeps


def main() -> int:
    """Run the list; the report is written anew after every check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", type=Path, help="a list, e.g. ray_jobs/validate/one_gpu.yaml")
    parser.add_argument("--report", type=Path, default=Path("validation.md"), help="(%(default)s)")
    arguments = parser.parse_args()
    checks = yaml.safe_load(arguments.checks.read_text(encoding="utf-8"))
    parts, failed = ["\n".join(_head(arguments.checks))], 0
    for number, check in enumerate(checks, start=1):
        print(f"{number}/{len(checks)} {check['name']}", flush=True)
        started = time.monotonic()
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", check["command"]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        failed += done.returncode != 0
        result = "ok" if done.returncode == 0 else f"FAILED, exit code {done.returncode}"
        result += f", {(time.monotonic() - started) / 60:.1f} min"
        print(f"    {result}", flush=True)
        parts.append("\n".join(_section(number, check, result, done.stdout.decode(errors="replace"))))
        arguments.report.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"{failed} of {len(checks)} failed; {arguments.report}")
    return int(failed > 0)


def _head(checks: Path) -> Iterator[str]:
    yield f"# Validation: {checks.stem}"
    yield ""
    yield f"{time.strftime('%Y-%m-%d %H:%M')}, {platform.node()}, Python {platform.python_version()}"
    for command in (["git", "log", "--oneline", "-1"], ["nvidia-smi", "-L"]):
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            continue
        yield from ("", *(f"    {line}" for line in answer.splitlines()))


def _section(number: int, check: dict[str, str], result: str, output: str) -> Iterator[str]:
    yield f"## {number}. {check['name']}: {result}"
    yield ""
    yield f"Proves: {check['proves']}"
    yield ""
    yield f"Look at: {check['look']}"
    yield ""
    for line in check["command"].strip().splitlines():
        yield f"    $ {line}"
    # A progress bar writes its states one over the other: only the last one stays.
    for line in [line.rstrip("\r").rpartition("\r")[2] for line in output.rstrip("\n").split("\n")][-LINES:]:
        yield f"    {line}"


if __name__ == "__main__":
    sys.exit(main())
