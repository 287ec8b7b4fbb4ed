"""`meds eval`: sample models on benchmarks and report pass@k.

Draw n samples of every problem with vLLM, on as many engines as fit on the free GPUs, and report pass@k. Run the
command again to draw only the missing samples, for example after raising --n. The report compares all labels in OUT
that were sampled with the same settings. The defaults are the paper's, except for those taken from the run.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meds_openrlhf.cli.quiet import quiet_start
from meds_openrlhf.evaluation.request import MAX_TOKENS, Request
from meds_openrlhf.options import add_command, add_trust

if TYPE_CHECKING:
    from meds_openrlhf.evaluation.evaluate import Evaluation, Progress


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = add_command(subparsers, "eval", run, __doc__)
    # The models come first: --benchmarks takes all words that follow it.
    parser.usage = "meds eval [LABEL=]MODEL ... --benchmarks NAME|FILE ... [options]"
    add, default = parser.add_argument, "(default: %(default)s)"
    models = "a run's folder (its trained policy, or its newest checkpoint), RUN@50 (the checkpoint of step 50), a "
    models += "Hugging Face folder, or a name on the hub; LABEL is its name in tables"
    add("models", metavar="[LABEL=]MODEL", nargs="+", help=models)
    names = "aime24, amc23, math500, minerva, olympiadbench, or .jsonl files with id, prompt and answer; must follow "
    names += "the models on the command line"
    add("--benchmarks", metavar="NAME|FILE", nargs="+", required=True, help=names)
    add("--data", metavar="FOLDER", type=Path, default=Path("data"), help=f"folder of named benchmarks {default}")
    add("--out", metavar="OUT", type=Path, default=Path("eval"), help=f"folder of samples and report {default}")
    add("--n", metavar="N", type=int, default=128, help=f"samples per problem {default}")
    add("--temperature", metavar="T", type=float, default=1.0, help=f"sampling temperature {default}")
    add("--top-p", metavar="P", type=float, default=1.0, help=f"nucleus sampling threshold {default}")
    add("--seed", metavar="N", type=int, default=0, help=f"seed of the samples {default}")
    tokens = f"maximum tokens of a response, within the model's context (default: the run's, or {MAX_TOKENS})"
    add("--max-tokens", metavar="N", type=int, help=tokens)
    pattern = "pattern of the answer (default: the run's meds.features.answer_pattern, otherwise \\boxed{})"
    add("--answer-pattern", metavar="REGEX", help=pattern)
    add("--engines", metavar="N", type=int, help="number of engines (default: as many as fit; 1 on a CPU)")
    add("--tensor-parallel", metavar="N", type=int, default=1, help=f"GPUs per engine {default}")
    add("--wait", dest="wait_seconds", metavar="SECONDS", type=float, default=600, help=f"wait for free GPUs {default}")
    add("--allow-cpu", action="store_true", help="run on the CPU if this machine has no GPU")
    add_trust(parser)
    add("--json", action="store_true", help="print the report's results.json instead of its first table")
    add("--verbose", action="store_true", help="print the output of every Ray worker")


def run(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Draw the missing samples, write the report and print its overview."""
    quiet_start(arguments.verbose)
    from meds_openrlhf.evaluation.evaluate import Evaluation, Progress
    from meds_openrlhf.evaluation.report import JSON, PAGE, first_table, write_report_of_labels
    from meds_openrlhf.files import MOST_TEXT, read_file
    from meds_openrlhf.runtime.ray_connection import require_lasting_in_job

    require_lasting_in_job("--out", arguments.out)
    progress = Progress(sys.stderr)
    evaluation = Evaluation(_request(arguments), progress.say)
    _draw(evaluation, progress, arguments.verbose)
    settings, labels = evaluation.subjects[0].settings, [subject.label for subject in evaluation.subjects]
    write_report_of_labels(arguments.out, settings, evaluation.benchmarks, arguments.n, labels, progress.say)
    found = read_file(arguments.out / JSON, MOST_TEXT).decode() if arguments.json else first_table(arguments.out)
    print(found, end="", flush=True)
    progress.say(f"report: {arguments.out / PAGE}")
    return 0


def _draw(evaluation: Evaluation, progress: Progress, verbose: bool) -> None:
    """Draw the missing samples; connects to Ray only if there are any."""
    from meds_openrlhf.evaluation.evaluate import draw_missing
    from meds_openrlhf.runtime.errors import interruptible
    from meds_openrlhf.runtime.ray_connection import ray_connection

    with evaluation.opened() as samplings:
        if not any(sampling.blocks for sampling in samplings):
            progress.say(f"all {sum(sampling.total for sampling in samplings)} samples are there already")
            return
        connection = ray_connection(on_cpu=evaluation.request.on_cpu, verbose=verbose, say=progress.say)
        with connection, interruptible(watchdog_minutes=None):
            draw_missing(evaluation, samplings, progress)


def _request(arguments: argparse.Namespace) -> Request:
    from meds_openrlhf.runtime.devices import runs_on_cpu

    hint = "this machine has no GPU. Set RAY_ADDRESS to a cluster, or add --allow-cpu."
    on_cpu = runs_on_cpu(arguments.allow_cpu, "--allow-cpu", hint)
    given = {field.name: getattr(arguments, field.name) for field in fields(Request) if field.name != "on_cpu"}
    given |= {"models": tuple(arguments.models), "benchmarks": tuple(arguments.benchmarks)}
    given |= {"out": arguments.out.absolute(), "on_cpu": on_cpu}
    if on_cpu and arguments.engines is None:
        given["engines"] = 1
    return Request(**given)
