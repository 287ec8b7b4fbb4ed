"""`meds report`: write one HTML file with the curves and the recurring errors of runs.

Write one HTML file about one or several runs, which any browser opens without a network: settings, curves of all
metrics, and the errors that the policy repeats, with example responses and layer logits. Apart from the report,
nothing in the run folders is changed, and the runs may still be training. Prints the file's path.

Beside it, --json and --markdown write what was found for programs and for an issue, and --export the prompts of a theme
as a data set for `meds train` and `meds eval`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from meds_openrlhf.judge.settings import add_judge_options, judge_settings
from meds_openrlhf.options import add_command, add_export_for, export_for
from meds_openrlhf.paths import RunPaths


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = add_command(subparsers, "report", run, __doc__)
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="folder of a run, e.g. runs/my-run")
    add = parser.add_argument
    output = "file to write (default: report.html in the first RUN)"
    add("--out", "--output", dest="output", metavar="FILE", type=Path, help=output)
    add("--json", dest="data", metavar="FILE", type=Path, help="file for the findings as JSON; - is standard output")
    add("--markdown", metavar="FILE", type=Path, help="file for the findings as Markdown; - is standard output")
    export = "write the prompts of a theme, by its name or its place by size from 1, or those that are suspects or "
    export += "unsolved, to a file"
    add("--export", metavar=("THEME", "FILE"), nargs=2, help=export)
    add_export_for(parser)
    add_judge_options(parser, "a language model that makes and names the themes (default: the words of responses do)")


def run(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Write the report and print its path."""
    from tqdm import tqdm

    from meds_openrlhf.outputs import STDOUT
    from meds_openrlhf.report.write import write_report

    given = vars(arguments)
    judge = judge_settings(given) if any(name.startswith("judge_") for name in given) else None
    export = arguments.export and (arguments.export[0], Path(arguments.export[1]))
    output = arguments.output or RunPaths(arguments.runs[0]).report
    files = {"data": arguments.data, "markdown": arguments.markdown}
    with tqdm(bar_format="{desc} ({elapsed})", leave=False, disable=None) as line:  # only in a terminal
        page = write_report(
            arguments.runs,
            output,
            judge=judge,
            export=export,
            trainer=export_for(arguments),
            say=line.set_description_str,
            **files,
        )
    print(page, file=sys.stderr if STDOUT in files.values() else sys.stdout)
    return 0
