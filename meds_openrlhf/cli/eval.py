"""`meds eval`: sample models on benchmarks, and compare them."""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meds_openrlhf.cli.train import quiet_start
from meds_openrlhf.evaluation.request import MAX_TOKENS, Request

if TYPE_CHECKING:
    from meds_openrlhf.evaluation.evaluate import Evaluation
    from meds_openrlhf.evaluation.sampling.progress import Progress

# The models come first: --benchmarks takes all words that follow it.
USAGE = "meds eval [LABEL=]MODEL ... --benchmarks NAME|FILE ... [options]"
DESCRIPTION = """Draw n samples of every problem with vLLM, as many engines as there are GPUs, and report pass@k.
Started again, it draws only what is missing, also for a larger --n; every label in OUT that was sampled alike is in the
report. The defaults are the paper's settings."""


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "eval", help="sample models on benchmarks and report pass@k", usage=USAGE, description=DESCRIPTION
    )
    parser.add_argument(
        "models",
        metavar="[LABEL=]MODEL",
        nargs="+",
        help="a run's folder (its trained policy, or its newest checkpoint), RUN@50 (the checkpoint of step 50), a "
        "Hugging Face folder, or a name on the hub; LABEL names it in tables",
    )
    parser.add_argument(
        "--benchmarks",
        metavar="NAME|FILE",
        nargs="+",
        required=True,
        help="aime24, amc23, math500, minerva, olympiadbench, or .jsonl files with id, prompt and answer; "
        "the MODELs come before",
    )
    parser.add_argument(
        "--data", metavar="FOLDER", type=Path, default=Path("data"), help="where named ones are (%(default)s)"
    )
    parser.add_argument(
        "--out", metavar="OUT", type=Path, default=Path("eval"), help="samples and report (%(default)s)"
    )
    parser.add_argument("--step", metavar="N", type=int, help="of every run folder, as RUN@N")
    parser.add_argument("--n", metavar="N", type=int, default=128, help="samples of each problem (%(default)s)")
    parser.add_argument("--temperature", metavar="T", type=float, default=1.0, help="(%(default)s)")
    parser.add_argument("--top-p", metavar="P", type=float, default=1.0, help="(%(default)s)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="(%(default)s)")
    parser.add_argument(
        "--max-tokens",
        metavar="N",
        type=int,
        help=f"of a response, within what the model's context leaves (the run's own, without a run {MAX_TOKENS})",
    )
    parser.add_argument(
        "--answer-pattern",
        metavar="REGEX",
        help="how responses mark their answer (the runs' own meds.features.answer_pattern, without a run boxes)",
    )
    parser.add_argument("--engines", metavar="N", type=int, help="how many (as many as free GPUs allow; on a CPU 1)")
    parser.add_argument("--tensor-parallel", metavar="N", type=int, default=1, help="GPUs of an engine (%(default)s)")
    parser.add_argument(
        "--wait", dest="wait_seconds", metavar="SECONDS", type=float, default=600, help="for room (%(default)s)"
    )
    parser.add_argument("--allow-cpu", action="store_true", help="run without a GPU if there is none")
    parser.add_argument("--verbose", action="store_true", help="print what every Ray worker prints")
    parser.set_defaults(run=run, takes_overrides=False)


def run(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Draw the missing samples, write the report and print its overview; returns 1 if the engines were lost."""
    quiet_start(arguments.verbose)
    from meds_openrlhf.evaluation.sampling.draw import EvaluationLostError

    try:
        _evaluate(arguments)
        return 0
    except EvaluationLostError as error:
        print(f"meds: {error}; run the same command again to sample what is missing", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interruption:
        print("meds: interrupted; run the same command again to sample what is missing", file=sys.stderr)
        return 128 + getattr(interruption, "signum", signal.SIGINT)


def _evaluate(arguments: argparse.Namespace) -> None:
    from meds_openrlhf.evaluation.evaluate import Evaluation
    from meds_openrlhf.evaluation.labels import write_report_of_labels
    from meds_openrlhf.evaluation.report import PAGE, first_table
    from meds_openrlhf.evaluation.sampling.progress import Progress
    from meds_openrlhf.runtime.ray_connection import require_lasting_in_job

    require_lasting_in_job("--out", arguments.out)
    progress = Progress(sys.stderr)
    evaluation = Evaluation(_request(arguments), progress.say)
    _draw(evaluation, progress, arguments.verbose)
    subjects = evaluation.subjects
    labels = [subject.label for subject in subjects]
    write_report_of_labels(
        arguments.out, subjects[0].settings, evaluation.benchmarks, arguments.n, labels, progress.say
    )
    print(first_table(arguments.out), end="", flush=True)
    progress.say(f"report: {arguments.out / PAGE}")


def _draw(evaluation: Evaluation, progress: Progress, verbose: bool) -> None:
    """Draw the missing samples; connects to Ray only if there are any."""
    from meds_openrlhf.evaluation.evaluate import draw_missing
    from meds_openrlhf.runtime.ray_connection import ray_connection
    from meds_openrlhf.runtime.signals import interruptible

    with evaluation.opened() as samplings:
        if not any(sampling.blocks for sampling in samplings):
            progress.say(f"all {sum(sampling.total for sampling in samplings)} samples are there already")
            return
        connection = ray_connection(on_cpu=evaluation.request.on_cpu, verbose=verbose)
        with connection, interruptible(watchdog_minutes=None):
            draw_missing(evaluation, samplings, progress)


def _request(arguments: argparse.Namespace) -> Request:
    from meds_openrlhf.runtime.devices import runs_on_cpu

    hint = "on a machine without a GPU; set RAY_ADDRESS to a cluster, or add --allow-cpu"
    on_cpu = runs_on_cpu(arguments.allow_cpu, "--allow-cpu", hint)
    named = {field.name for field in fields(Request)}
    given = {name: value for name, value in vars(arguments).items() if name in named}
    given |= {"models": tuple(arguments.models), "benchmarks": tuple(arguments.benchmarks)}
    given |= {"out": arguments.out.absolute(), "on_cpu": on_cpu}
    if on_cpu and arguments.engines is None:
        given["engines"] = 1
    return Request(**given)
