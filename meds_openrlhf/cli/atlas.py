"""`meds atlas`: map the recurring errors in another trainer's rollouts.

Map the errors that a model repeats, from rollouts that verl, TRL, NeMo-RL, prime-rl, slime, AReaL, OpenRLHF or your own
program wrote, or from the samples of evaluations by lm-evaluation-harness, Inspect, verifiers or SkyRL (docs/atlas.md).
The wrong rollouts of each prompt are clustered by their final answers or, with --model, by fingerprints from a forward
pass of the model. Writes a folder that `meds report` and `meds memory` read, and its report. Run the same command again
to continue after a stop, or to add new steps. Change settings with --meds.features.X V and --meds.memory.X V. Exits
with 1 if most rollouts have no final answer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meds_openrlhf.config import ConfigError, MedsSettings, RunConfig
from meds_openrlhf.config.loader import parse_overrides, settings_of
from meds_openrlhf.config.schema import PenaltySettings
from meds_openrlhf.judge.settings import add_judge_options, judge_settings
from meds_openrlhf.options import add_command, add_trust, finite, pairs_of
from meds_openrlhf.terminal import aligned, counted

if TYPE_CHECKING:
    from meds_openrlhf.dumps.reading import Counts, Dump
    from meds_openrlhf.dumps.run_folder import Filled

RIGHT_FROM_DEFAULT = PenaltySettings.correct_threshold
NO_MODEL = "none"


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = add_command(subparsers, "atlas", run, __doc__, takes_overrides=True)
    add = parser.add_argument
    files = "dumps (.jsonl, .json, .parquet, .pt, .eval), or folders of dumps; - reads JSON lines from a pipe"
    add("files", metavar="FILES", type=Path, nargs="+", help=files)
    model = "Hugging Face model that generated the rollouts, for fingerprints (default: none, use final answers)"
    add("--model", default=NO_MODEL, metavar="MODEL|none", help=model)
    add("--out", type=Path, default=Path("atlas"), metavar="FOLDER", help="folder to write to (default: %(default)s)")
    name = "format of the dumps, e.g. verl or trl (default: recognized by the columns)"
    add("--format", default="auto", metavar="NAME", help=name)
    columns = (
        "the dump's columns by role: prompt, response, reward, truth, answer, step; filter=NAME is lm-eval's filter"
    )
    add("--columns", nargs="+", metavar="ROLE=COLUMN", help=columns)
    right_from = "a rollout is right if its reward is at least X (default: %(default)s)"
    add("--right-from", type=finite, default=RIGHT_FROM_DEFAULT, metavar="X", help=right_from)
    batch_tokens = "maximum tokens per forward pass (default: %(default)s)"
    add("--batch-tokens", type=int, default=16_384, metavar="N", help=batch_tokens)
    add_trust(parser)
    add_judge_options(parser, "a language model that makes and names the themes (default: the words of responses do)")


def run(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Write the folder and its report, and print what was read."""
    given = vars(arguments)
    judge = judge_settings(given) if any(name.startswith("judge_") for name in given) else None
    config = _config_of(arguments, rest)
    columns = pairs_of("--columns", arguments.columns, "ROLE=COLUMN")
    from meds_openrlhf.paths import RunPaths
    from meds_openrlhf.report import write_report

    dump = open_dump(arguments.files, arguments.format, columns, without=arguments.out)
    fingerprints = _fingerprints(arguments, config.meds)
    if "answer" in columns and fingerprints is not None:
        hint = "the answers' places in the texts are needed for --model. Leave it out."
        raise ConfigError("--columns", f"answer={columns['answer']}", hint)
    filled = lay_out(dump, arguments.out, config, fingerprints, arguments.right_from, by_column="answer" in columns)
    counts = dump.counts
    print(_summary(dump, filled, arguments.right_from))
    print(write_report([arguments.out], RunPaths(arguments.out).report, judge=judge))
    if 2 * filled.answered < counts.rollouts:
        print(f"meds: {_without_answers(counts.rollouts, filled, arguments.model != NO_MODEL)}", file=sys.stderr)
        return 1
    return 0


def open_dump(files: Sequence[Path], form: str, columns: Mapping[str, str], without: Path) -> Dump:
    """Find the rollouts in ``files``. Raises ConfigError for an unknown format or role, or if there are none."""
    from meds_openrlhf.dumps.formats import COLUMNS, FORMATS
    from meds_openrlhf.dumps.reading import Dump

    names = ["auto", *(name for name, known in FORMATS.items() if not known.unread)]
    if form not in names:
        raise ConfigError("--format", form, f"must be one of {', '.join(names)}.")
    roles = (*COLUMNS, "filter")
    for role, column in columns.items():
        if role not in roles:
            raise ConfigError("--columns", f"{role}={column}", f"the role must be one of {', '.join(roles)}.")
    return Dump(files, form, columns, without=without)


def lay_out(dump: Dump, out: Path, config: RunConfig, fingerprints: Any, right_from: float, by_column: bool) -> Filled:
    """Lay a dump out as a run folder. Raises ConfigError if it has no rollouts."""
    from tqdm import tqdm

    from meds_openrlhf.dumps.run_folder import RunFolder

    folder = RunFolder(out, config, fingerprints, right_from, by_column=by_column)
    try:
        with tqdm(unit=" rollouts", leave=False, disable=None) as progress:
            for rollouts in folder.add(dump):
                progress.update(rollouts)
    finally:
        folder.close()
    if not dump.counts.rollouts:
        reasons = ", ".join(f"{number} {reason}" for reason, number in dump.counts.left_out.items()) or "none"
        raise ConfigError("FILES", dump.named[0], f"contains no rollouts. Skipped lines: {reasons}.")
    return folder.filled


def skipped(counts: Counts) -> Iterator[str]:
    """Yield a line for each reason for which files or lines were left out."""
    for what, left_out in (("file", counts.files_left_out), ("line", counts.left_out)):
        for reason, number in left_out.most_common():
            yield f"{counted(number, what)} {reason} (the first: {counts.examples[reason]})"


def settings_of_atlas(preset: str, changed: Mapping[str, Any]) -> MedsSettings:
    """The settings of a folder that is laid out for ``preset``, with those that the user ``changed``."""
    fixed = {"meds.run_dir": ".", "meds.memory.shards": 1, "meds.penalty.alpha": 0.0}
    return settings_of({"meds.memory.preset": preset, **fixed, **changed})


def _config_of(arguments: argparse.Namespace, rest: list[str]) -> RunConfig:
    """The settings of the folder's config.yaml."""
    from meds_openrlhf.runs.settings import RIGHT_FROM

    with_model = arguments.model != NO_MODEL
    changed = parse_overrides(rest)
    for name, value in changed.items():
        fixed = ("meds.memory.shards", "meds.memory.remember", "meds.features.function")
        if not name.startswith(("meds.features.", "meds.memory.")) or name in fixed:
            raise ConfigError(name, value, "cannot be changed for an atlas. Leave it out.")
    meds = settings_of_atlas("robust" if with_model else "answers", changed)
    if (meds.memory.preset == "answers") == with_model:
        hint = "compares final answers. Leave out --model." if with_model else "needs fingerprints. Add --model MODEL."
        raise ConfigError("meds.memory.preset", meds.memory.preset, hint)
    return RunConfig(meds, {"actor.model_name_or_path": arguments.model, RIGHT_FROM: arguments.right_from})


def _fingerprints(arguments: argparse.Namespace, meds: MedsSettings) -> Any:
    if arguments.batch_tokens < 1:
        raise ConfigError("--batch-tokens", arguments.batch_tokens, "must be at least 1.")
    if arguments.model == NO_MODEL:
        return None
    from meds_openrlhf.dumps.fingerprints import Fingerprints

    return Fingerprints(arguments.model, meds.features, arguments.batch_tokens, arguments.trust_remote_code)


def _summary(dump: Dump, filled: Filled, right_from: float) -> str:
    """What was read, and what was skipped and why."""
    counts, prompts = dump.counts, len(filled.prompts)
    clean, wrong = prompts - len(filled.wrong_prompts), counts.rollouts - filled.right
    found = f"{counted(counts.rollouts, 'rollout')} of {counted(prompts, 'prompt')}, {counted(counts.files, 'file')}"
    rows = [("read", f"{found} ({dump.format_name})"), *(("skipped", line) for line in skipped(counts))]
    rows.append(("found", f"{filled.answered:,} of {counts.rollouts:,} final answers, by {filled.where}"))
    without_wrong = f"{counted(clean, 'prompt')} without a wrong rollout"
    rows.append(("right", f"{filled.right:,} (reward at least {right_from:g}); {without_wrong}"))
    rows.append(("wrong", f"{wrong:,}, of which {filled.remembered:,} are in the memory"))
    in_log_only = {"without a final answer": filled.without_answer, "too long for the model": filled.too_long}
    rows += [("", f"{number:,} {reason}, only in the log") for reason, number in in_log_only.items() if number]
    if (better := filled.scores.better(right_from)) is not None:
        limit, missed = better
        found = f"{missed:,} have the label as their answer, and a lower reward perhaps for their length"
        rows.append(("", f"{found}: try --right-from {limit:g}"))
    return aligned(rows)


def _without_answers(rollouts: int, filled: Filled, with_model: bool) -> str:
    """What to try if most rollouts have no final answer."""
    tried = "" if filled.where.startswith("what") else "; \\boxed{}, ####, <answer> and Answer: were tried"
    column = "" if with_model else ", or the dump's column of answers with --columns answer=NAME"
    hint = f"Name the answers' pattern with --meds.features.answer_pattern 'REGEX'{column}."
    return f"{rollouts - filled.answered:,} of {rollouts:,} rollouts have no final answer{tried}. {hint}"
