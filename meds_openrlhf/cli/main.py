"""`meds`: dispatch to the subcommand, and report errors that a user can correct in one line with exit code 2."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from meds_openrlhf import __version__
from meds_openrlhf.cli import atlas, data, demo, doctor, eval, memory, plan, report, track, train
from meds_openrlhf.cli.extras import missing_extra
from meds_openrlhf.config import ConfigError
from meds_openrlhf.exits import DISK_ERRORS, silence_if_closed
from meds_openrlhf.memory.errors import MemoryBusyError, MemoryCorruptionError
from meds_openrlhf.runtime.errors import RunLostError, innermost
from meds_openrlhf.runtime.signals import Interrupted

SUBCOMMANDS = (train, eval, plan, doctor, demo, data, memory, report, atlas, track)
TRAINERS = ("train", "demo")
READERS = ("memory", "report", "track")  # whose output may go to `| head`


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's own) and return its exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    parser = argparse.ArgumentParser(prog="meds", description="Memory-enhanced reward shaping for RL on OpenRLHF.")
    parser.add_argument("--version", action="version", version=f"meds {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in SUBCOMMANDS:
        module.add_parser(subparsers)
    known, rest = parser.parse_known_args(argv)
    if rest and not known.takes_overrides:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        code = int(known.run(known, rest))
        if known.command in READERS:
            sys.stdout.flush()  # a BrokenPipeError must surface inside this try
        return code
    except (ConfigError, MemoryCorruptionError, MemoryBusyError) as error:
        print(f"meds: {innermost(error)}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        advice = missing_extra(known.command, error)
        if advice is None:
            raise
        print(f"meds: {advice}", file=sys.stderr)
        return 2
    except RunLostError as error:
        print(f"meds: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        if known.command not in READERS or not silence_if_closed(sys.stdout):
            raise
        return 0
    except OSError as error:
        if getattr(innermost(error), "errno", None) not in DISK_ERRORS:
            raise
        print(f"meds: {innermost(error)}", file=sys.stderr)
        return 2
    except Interrupted as interruption:
        print(f"meds: {interruption}", file=sys.stderr)
        return 128 + interruption.signum
    except KeyboardInterrupt:
        way_on = "; --resume continues the run from its last checkpoint" if known.command in TRAINERS else ""
        print(f"meds: interrupted{way_on}", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
