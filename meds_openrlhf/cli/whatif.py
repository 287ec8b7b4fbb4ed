"""`meds whatif`: what a run does to itself, and what each method would change.

Measure before you shape: of a run of this project, or of the dumps of any trainer that `meds atlas` reads, say which
wrong answers come back, where pass@k peaked, and how far each method would have moved the advantages of these very
rollouts. Reads rollouts alone; no GPU, no training (docs/whatif.md).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from meds_openrlhf.cli.atlas import RIGHT_FROM_DEFAULT, lay_out, open_dump, settings_of_atlas, skipped
from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.config.errors import suggestion
from meds_openrlhf.config.schema import Pattern
from meds_openrlhf.config.section import fit
from meds_openrlhf.options import Trainer, add_command, add_export_for, export_for, finite, pairs_of
from meds_openrlhf.terminal import counted

if TYPE_CHECKING:
    from meds_openrlhf.whatif.page import WhatIf


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = add_command(subparsers, "whatif", run, __doc__)
    add = parser.add_argument
    add("rollouts", metavar="ROLLOUTS", type=Path, nargs="+", help="a run's folder, or dumps as for `meds atlas`")
    add("--json", dest="data", metavar="FILE", type=Path, help="file for the findings as JSON; - is standard output")
    export = "write the prompts that a method, by its name in the table, changes most to a file"
    add("--export", metavar=("METHOD", "FILE"), nargs=2, help=export)
    add_export_for(parser)
    add("--format", default="auto", metavar="NAME", help="format of dumps (default: recognized by the columns)")
    columns = "the dump's columns by role, as for `meds atlas`"
    add("--columns", nargs="+", metavar="ROLE=COLUMN", help=columns)
    right_from = "a dump's rollout is right if its reward is at least X (default: %(default)s)"
    add("--right-from", type=finite, default=RIGHT_FROM_DEFAULT, metavar="X", help=right_from)
    pattern = "regular expression whose only group is the final answer in a dump's responses"
    add("--answer-pattern", metavar="REGEX", help=pattern)


def run(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Print the page, and write it for programs."""
    from meds_openrlhf.outputs import STDOUT, require_outputs, write_output
    from meds_openrlhf.report.export import require_suffix
    from meds_openrlhf.whatif.page import WhatIf
    from meds_openrlhf.whatif.visits import read_visits

    require_outputs({"--json": arguments.data, "--export": arguments.export and Path(arguments.export[1])})
    trainer = export_for(arguments)
    if arguments.export is not None:
        require_suffix(Path(arguments.export[1]), trainer)
    with _folder_of(arguments) as folder:
        found = WhatIf(read_visits(folder))
        if arguments.export is not None:
            _export(found, folder, arguments, trainer)
    print(found.as_text(), end="", file=sys.stderr if arguments.data == STDOUT else sys.stdout)
    if arguments.data is not None:
        text = json.dumps({"version": 1, **found.as_json()}, indent=1, allow_nan=False) + "\n"
        if arguments.data == STDOUT:
            print(text, end="")
        else:
            write_output(arguments.data, text, "--json")
    if 2 * found.answered < len(found.visits.answer):
        hint = "" if _is_run(arguments) else f" {_NAME_ANSWERS}"
        few = f"{found.answered:,} of {len(found.visits.answer):,} rollouts have a final answer.{hint}"
        print(f"meds: {few}", file=sys.stderr)
        return 1
    return 0


def _export(found: WhatIf, folder: Path, arguments: argparse.Namespace, trainer: Trainer) -> None:
    from meds_openrlhf.paths import RunPaths
    from meds_openrlhf.report.export import export_prompts
    from meds_openrlhf.rollouts.run import read_log

    name, file = arguments.export
    methods = {method.name: method for method in found.methods}
    if name not in methods:
        raise ConfigError("--export", name, f"is not a method of the table. {suggestion(name, methods)}")
    count = export_prompts(methods[name].prompts, [read_log(RunPaths(folder))], Path(file), trainer)
    print(f"{file}: {counted(count, 'prompt')}", file=sys.stderr)


_NAME_ANSWERS = "Name the answers' pattern with --answer-pattern, or a dump's column with --columns answer=NAME."


def _is_run(arguments: argparse.Namespace) -> bool:
    from meds_openrlhf.paths import RunPaths

    return RunPaths(arguments.rollouts[0]).config.is_file()


@contextmanager
def _folder_of(arguments: argparse.Namespace) -> Iterator[Path]:
    """The run's folder, or one that is made of dumps for as long as they are read."""
    from meds_openrlhf.runs.settings import RIGHT_FROM

    first = arguments.rollouts[0]
    if _is_run(arguments):
        if len(arguments.rollouts) > 1:
            raise ConfigError("ROLLOUTS", arguments.rollouts[1], "comes after a run. Name one run, or dumps alone.")
        of_dumps = {"format": "auto", "columns": None, "right_from": RIGHT_FROM_DEFAULT, "answer_pattern": None}
        for name, default in of_dumps.items():
            if (given := getattr(arguments, name)) != default:
                hint = f"is for dumps, and {first} is a run. Leave it out."
                raise ConfigError(f"--{name.replace('_', '-')}", given, hint)
        yield first
        return
    columns = pairs_of("--columns", arguments.columns, "ROLE=COLUMN")
    fit(arguments.answer_pattern, Pattern | None, "--answer-pattern")
    meds = settings_of_atlas("answers", {"meds.features.answer_pattern": arguments.answer_pattern})
    config = RunConfig(meds, {RIGHT_FROM: arguments.right_from})
    with TemporaryDirectory(prefix="meds-whatif-") as temporary:
        folder = Path(temporary)
        dump = open_dump(arguments.rollouts, arguments.format, columns, without=folder)
        lay_out(dump, folder, config, None, arguments.right_from, by_column="answer" in columns)
        for line in skipped(dump.counts):
            print(f"skipped {line}", file=sys.stderr)
        yield folder
