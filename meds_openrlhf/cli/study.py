"""`meds study`: methods x tasks x seeds in one file, run and judged."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meds_openrlhf.cli.extras import require_installed
from meds_openrlhf.cli.train import quiet_start
from meds_openrlhf.config import ConfigError

if TYPE_CHECKING:
    from meds_openrlhf.study.plan import StudyRun


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "study",
        help="compare methods over tasks and seeds",
        description="Run a study, which is methods x tasks x seeds in one file (docs/studies.md), and judge its claims "
        "by the rule in the file.",
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    _add_run(kinds)
    status = kinds.add_parser("status", help="which runs are done, running, failed, stopped or missing")
    _add_file(status)
    status.set_defaults(run=run_status, takes_overrides=False)
    _add_report(kinds)


def _add_run(kinds: Any) -> None:
    parser = kinds.add_parser(
        "run",
        help="make what is missing",
        description="Train and evaluate what is missing of a study. It can be stopped at any moment; the same command "
        "goes on. A run that failed is tried again. Exit code 1: a run failed.",
    )
    _add_file(parser)
    parser.add_argument("--only", metavar="RUN", nargs="+", help="these runs alone, named TASK-METHOD-SEED")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the commands of what is missing, and start nothing"
    )
    parser.add_argument("--parallel", metavar="N", type=int, default=1, help="runs at a time (%(default)s)")
    parser.set_defaults(run=run_study, takes_overrides=False)


def _add_report(kinds: Any) -> None:
    parser = kinds.add_parser(
        "report",
        help="tables, figures, and a verdict on every claim",
        description="Write tables (Markdown, CSV), figures (SVG, PNG) and one HTML page from the study's results. "
        "Needs no run, only what each has left in the results folder. Prints the page's path.",
    )
    _add_file(parser)
    parser.add_argument("--from", dest="source", metavar="FOLDER", type=Path, help="results to read, as --results")
    parser.add_argument("--out", metavar="FOLDER", type=Path, help="folder to write to (the results folder)")
    parser.set_defaults(run=run_report, takes_overrides=False)


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="e.g. studies/paper-table1.yaml")
    parser.add_argument("--runs", metavar="FOLDER", type=Path, help="of the runs (the file's, or runs/NAME)")
    parser.add_argument("--results", metavar="FOLDER", type=Path, help="what is left of them (results/NAME)")


def _runs(arguments: argparse.Namespace, results: Path | None = None) -> list[StudyRun]:
    from meds_openrlhf.study.plan import runs_of
    from meds_openrlhf.study.study_file import load_study

    return runs_of(load_study(arguments.file, arguments.runs, results or arguments.results))


def run_study(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Make what is missing; returns 1 if a run failed."""
    runs = _runs(arguments)
    names = [run.name for run in runs]
    for name in arguments.only or ():
        if name not in names:
            raise ConfigError("--only", name, f"is no run of the study; those are {', '.join(names)}")
    if arguments.parallel < 1:
        raise ConfigError("--parallel", arguments.parallel, "is below 1")
    chosen = [run for run in runs if arguments.only is None or run.name in arguments.only]
    if arguments.dry_run:
        return _print_commands(chosen)
    try:
        require_installed("ray")
        quiet_start(verbose=False)
        from meds_openrlhf.study.execution import run_study as run_all

        return run_all(chosen, runs, _say, arguments.parallel)
    except KeyboardInterrupt as interruption:
        print("meds: interrupted; run the same command again to go on", file=sys.stderr)
        return 128 + getattr(interruption, "signum", signal.SIGINT)


def _print_commands(runs: list[StudyRun]) -> int:
    """Print the commands of all runs that are missing; those of a preparation only once."""
    from meds_openrlhf.study.execution import needs_run

    printed = set[str]()
    for run in filter(needs_run, runs):
        print(f"# {run.name}")
        for words in run.commands():
            line = shlex.join(words)
            if line not in printed:
                print(line)
            printed.add(line)
    return 0


def run_status(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Print a table of the runs."""
    runs = _runs(arguments)
    from meds_openrlhf.study.status import status_lines, statuses_of

    print("\n".join(status_lines(statuses_of(runs))))
    return 0


def run_report(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Write the report; prints the verdicts and the page's path."""
    runs = _runs(arguments, arguments.source)
    from meds_openrlhf.study.report import write_study_report

    page, verdicts = write_study_report(runs, arguments.out or runs[0].study.results)
    for verdict in verdicts:
        print(f"{verdict.name}: {verdict.verdict}")
    print(page)
    return 0


def _say(text: str) -> None:
    print(text, flush=True)
