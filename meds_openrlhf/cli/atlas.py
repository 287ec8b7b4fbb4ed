"""`meds atlas`: map the recurring errors in rollouts that another trainer has dumped."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meds_openrlhf.config import ConfigError, MedsSettings, RunConfig
from meds_openrlhf.config.loader import build, parse_overrides, unflatten

if TYPE_CHECKING:
    from meds_openrlhf.dumps.reading import Dump
    from meds_openrlhf.dumps.run_folder import Filled

NO_MODEL = "none"
CHANGEABLE = ("meds.features.", "meds.memory.")


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "atlas",
        help="the recurring errors of any run, from the rollouts that its trainer dumped",
        description="Map the errors that a model keeps making, from rollouts that verl, TRL, NeMo-RL, prime-rl, slime, "
        "OpenRLHF or a program of yours has written (docs/atlas.md). Wrong rollouts of a prompt are clustered by "
        "fingerprints, which one forward pass of the model over each gives, or by their final answers. Writes a "
        "folder that `meds report` and `meds memory` read, and its report. The same command goes on after a stop, "
        "and adds the steps that a training still going on has dumped since. Settings under meds.features and "
        "meds.memory can be changed as --meds.SECTION.X V.",
    )
    parser.add_argument("files", metavar="FILES", type=Path, nargs="+", help="dumps (.jsonl, .parquet, .pt) or folders")
    parser.add_argument(
        "--model", default=NO_MODEL, metavar="MODEL|none",
        help="the Hugging Face model that wrote the rollouts, for fingerprints (default: none, final answers)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("atlas"), metavar="FOLDER", help="to write (%(default)s)")
    parser.add_argument("--format", default="auto", metavar="NAME", help="verl, trl, ... (default: by the columns)")
    parser.add_argument(
        "--columns", nargs="+", default=[], metavar="ROLE=COLUMN",
        help="names of columns; roles: prompt, response, reward, truth, step",
    )  # fmt: skip
    parser.add_argument(
        "--right-from",
        type=float,
        default=0.5,
        metavar="X",
        help="a rollout is right from this reward up (%(default)s)",
    )
    parser.add_argument(
        "--batch-tokens", type=int, default=16_384, metavar="N", help="tokens in a forward pass (%(default)s)"
    )
    parser.set_defaults(run=run, takes_overrides=True)


def run(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Write the folder and its report, and print what was read."""
    config = _config_of(arguments, rest)
    columns = _columns_of(arguments.columns)
    from tqdm import tqdm

    from meds_openrlhf.dumps.formats import FORMATS
    from meds_openrlhf.dumps.reading import Dump
    from meds_openrlhf.dumps.run_folder import RunFolder
    from meds_openrlhf.paths import RunPaths
    from meds_openrlhf.report import write_report

    if arguments.format not in ("auto", *FORMATS):
        raise ConfigError("--format", arguments.format, f"is none of auto, {', '.join(FORMATS)}")
    dump = Dump(arguments.files, arguments.format, columns)
    folder = RunFolder(arguments.out, config, _fingerprints(arguments, config), arguments.right_from)
    try:
        with tqdm(unit=" rollouts", leave=False, disable=None) as progress:
            for rollouts in folder.add(dump):
                progress.update(rollouts)
    finally:
        folder.close()
    if not dump.counts.rollouts:
        reasons = ", ".join(f"{number} {reason}" for reason, number in dump.counts.left_out.items()) or "none"
        raise ConfigError("FILES", str(arguments.files[0]), f"has no rollout; lines left out: {reasons}")
    print(_summary(dump, folder.filled, arguments.right_from))
    print(write_report([arguments.out], RunPaths(arguments.out).report))
    return 0


def _config_of(arguments: argparse.Namespace, rest: list[str]) -> RunConfig:
    """The settings of the folder's config.yaml."""
    from meds_openrlhf.report.settings import RIGHT_FROM

    changed = parse_overrides(rest)
    for name, value in changed.items():
        if not name.startswith(CHANGEABLE):
            raise ConfigError(name, value, f"is no setting of an atlas; those begin with {' or '.join(CHANGEABLE)}")
    with_model = arguments.model != NO_MODEL
    ours = {"run_dir": ".", "memory.shards": 1, "memory.preset": "robust" if with_model else "answers"}
    ours |= {"penalty.alpha": 0.0, **{name.removeprefix("meds."): value for name, value in changed.items()}}
    meds = build(MedsSettings, unflatten(ours), "meds")
    if (meds.memory.preset == "answers") == with_model:
        hint = "compares final answers; leave --model out" if with_model else "needs fingerprints; name --model MODEL"
        raise ConfigError("meds.memory.preset", meds.memory.preset, hint)
    features, memory = meds.features, meds.memory
    given = {"features.function": features.function, "memory.shards": memory.shards, "memory.remember": memory.remember}
    for (name, value), only in zip(given.items(), (None, 1, "wrong")):
        if value != only:
            raise ConfigError(f"meds.{name}", value, "is for training; leave it out of an atlas")
    return RunConfig(meds, {"actor.model_name_or_path": arguments.model, RIGHT_FROM: arguments.right_from})


def _columns_of(words: list[str]) -> dict[str, str]:
    from meds_openrlhf.dumps.formats import COLUMNS

    columns = {}
    for word in words:
        role, _, column = word.partition("=")
        if role not in COLUMNS or not column:
            raise ConfigError("--columns", word, f"is not ROLE=COLUMN, with a role of {', '.join(COLUMNS)}")
        columns[role] = column
    return columns


def _fingerprints(arguments: argparse.Namespace, config: RunConfig) -> Any:
    if arguments.batch_tokens < 1:
        raise ConfigError("--batch-tokens", arguments.batch_tokens, "is below 1")
    if arguments.model == NO_MODEL:
        return None
    from meds_openrlhf.dumps.fingerprints import Fingerprints

    return Fingerprints(arguments.model, config.meds.features, arguments.batch_tokens)


def _summary(dump: Dump, filled: Filled, right_from: float) -> str:
    """What was read, what was left out and why."""
    counts, prompts = dump.counts, len(filled.prompts)
    clean, wrong = prompts - len(filled.wrong_prompts), counts.rollouts - filled.right
    lines = [
        f"read      {counts.rollouts:,} rollouts from {counts.files:,} files ({dump.format_name}), {prompts:,} prompts"
    ]
    for reason, number in counts.left_out.most_common():
        lines.append(f"left out  {number:,} lines {reason} (the first: {counts.examples[reason]})")
    lines += [
        f"right     {filled.right:,} (reward {right_from:g} and up); {clean:,} prompts have no wrong rollout",
        f"wrong     {wrong:,}, of them {filled.remembered:,} in the memory",
    ]
    in_log_alone = {"without a final answer": filled.without_answer, "too long for the model": filled.too_long}
    lines += [f"          {number:,} {reason}, in the log alone" for reason, number in in_log_alone.items() if number]
    return "\n".join(lines)
