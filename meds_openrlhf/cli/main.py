"""`meds`: dispatch to the subcommand, and report errors that a user can correct in one line with exit code 2."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Sequence
from typing import Any

from meds_openrlhf import __version__
from meds_openrlhf.cli import atlas, data, doctor, eval, memory, report, track, train, whatif
from meds_openrlhf.config import ConfigError
from meds_openrlhf.config.errors import how_to_install, suggestion
from meds_openrlhf.files import DISK_ERRORS, PATH_ERRORS, UnusableFileError, raise_limits
from meds_openrlhf.memory.errors import MemoryBusyError, MemoryCorruptionError
from meds_openrlhf.runtime.errors import RunLostError, innermost
from meds_openrlhf.terminal import (
    PrintableStream,
    prepare_streams,
    printable,
    printable_output,
    silence_if_closed,
)

# What registers each, in the order of the help.
SUBCOMMANDS = {
    "train": train.add_train,
    "eval": eval.add_parser,
    "plan": train.add_plan,
    "doctor": doctor.add_parser,
    "demo": train.add_demo,
    "data": data.add_parser,
    "memory": memory.add_parser,
    "report": report.add_parser,
    "atlas": atlas.add_parser,
    "whatif": whatif.add_parser,
    "track": track.add_parser,
}
# Commands that start Ray, whose workers' lines have colors; of these, a reader that closes the pipe is an error.
WITH_RAY = ("train", "doctor", "demo")
# The extra that each command needs; the other commands need only the base installation, and PACKAGES for some runs.
EXTRAS = {
    **dict.fromkeys(("train", "eval", "plan", "doctor", "demo", "data"), "gpu"),
    "track": "track",
    "atlas": "atlas",
    "report": "judge",
}
# The extra that has a package which some runs or trackers need; `gpu` has all but the trackers.
PACKAGES = {
    **dict.fromkeys(("numba", "hdbscan", "sklearn"), "atlas"),
    **{tracker: tracker for tracker in ("swanlab", "mlflow")},
}
SHELLS = ("bash", "zsh", "tcsh", "fish", "powershell")  # those of shtab
# What to do after Ctrl-C.
CONTINUE = {
    "train": ". With --resume it continues from the last checkpoint, if there is one.",
    "eval": ". Run the same command again to sample what is missing.",
    "atlas": ". Run the same command again to continue.",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's own) and return its exit code."""
    prepare_streams()
    form = "%(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, format=form, stream=PrintableStream(sys.stderr))
    parser = argparse.ArgumentParser(prog="meds", description="Memory-enhanced reward shaping for RL on OpenRLHF.")
    parser.add_argument("--version", action="version", version=f"meds {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add_parser in SUBCOMMANDS.values():
        add_parser(subparsers)
    completion = "print the completion script of a shell"
    parser.add_argument("--print-completion", action=_PrintCompletion, choices=SHELLS, help=completion)
    words = sys.argv[1:] if argv is None else argv
    if words and not words[0].startswith("-") and words[0] not in SUBCOMMANDS:
        parser.error(f"COMMAND={words[0]}: unknown command. {suggestion(words[0], SUBCOMMANDS)}")
    try:
        known, rest = parser.parse_known_args(argv)
        if rest and not known.takes_overrides:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
    except SystemExit:
        silence_if_closed(sys.stdout)  # `--help | true`
        raise
    except BrokenPipeError:  # the same, of which argparse says nothing from Python 3.11 on
        return 0 if silence_if_closed(sys.stdout) else 1
    raise_limits(known.size_factor)
    reads = known.command not in WITH_RAY
    try:
        with printable_output(reads):
            code = int(known.run(known, rest))
        if reads:
            sys.stdout.flush()  # a BrokenPipeError must surface inside this try
        return code
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, BrokenPipeError) and reads and silence_if_closed(sys.stdout):
            return 0
        code, line = _answer(error, known.command)
        if line is None:
            raise
        print(f"meds: {printable(line)}", file=sys.stderr)
        return code


class _PrintCompletion(argparse.Action):
    """Print the completion script of a shell; files are completed as values of all arguments, also of subcommands."""

    def __call__(self, parser: argparse.ArgumentParser, _namespace: Any, shell: Any, _option: Any = None) -> None:
        import shtab  # late: it would be a quarter of what every command imports

        def complete_files(parser: argparse.ArgumentParser) -> None:
            for action in parser._actions:
                if isinstance(action, argparse._SubParsersAction):
                    for command in action.choices.values():
                        complete_files(command)
                elif action.nargs != 0 and not action.choices:
                    action.complete = shtab.FILE  # type: ignore[attr-defined]

        complete_files(parser)
        print(shtab.complete(parser, shell))
        parser.exit()


def _answer(error: BaseException, command: str) -> tuple[int, str | None]:
    """The exit code and the line for an error; no line for a defect of the program."""
    cause = innermost(error)
    known = DISK_ERRORS if cause is not error else DISK_ERRORS + PATH_ERRORS
    is_users = isinstance(cause, OSError) and cause.errno in known
    if is_users or isinstance(cause, (ConfigError, UnusableFileError, MemoryCorruptionError, MemoryBusyError)):
        return 2, str(cause)
    if isinstance(error, ModuleNotFoundError):
        return 2, _missing_extra(command, error)
    if isinstance(error, RunLostError):
        return 1, str(error)
    if isinstance(error, KeyboardInterrupt):  # or Interrupted, which may say how the run stopped
        return 128 + getattr(error, "signum", signal.SIGINT), str(error) or f"interrupted{CONTINUE.get(command, '')}"
    return 1, None


def _missing_extra(command: str, error: ModuleNotFoundError) -> str | None:
    """What to install so that ``command`` works; None if the error is not about an extra's package."""
    package = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(command)
    if extra != "gpu":
        extra = PACKAGES.get(package, extra)
    if extra is None or package in ("", "meds_openrlhf"):
        return None
    return f"{command} needs {package}, which is not installed; {how_to_install(extra)}"


if __name__ == "__main__":
    sys.exit(main())
