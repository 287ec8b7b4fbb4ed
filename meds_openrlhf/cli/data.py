"""`meds data`: make data sets."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meds_openrlhf.cli.quiet import quiet_start
from meds_openrlhf.config import ConfigError
from meds_openrlhf.config.loader import value_of
from meds_openrlhf.data.catalog import CATALOG, TRAINING_FILE, find_sets
from meds_openrlhf.data.request import PREFIX, GymRequest
from meds_openrlhf.options import add_command, pairs_of
from meds_openrlhf.terminal import aligned, counted

if TYPE_CHECKING:
    from meds_openrlhf.arithmetic.warm_start import ArithmeticAssets
    from meds_openrlhf.data.prepare import Prepared
    from meds_openrlhf.data.sources import Source

DATA = Path("data")
_say = partial(print, flush=True)
SETS_ONLY, GYM_ONLY = ("from", "columns", "levels"), ("size", "held_out", "seed", "threshold", "instruction", "set")


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser("data", help="make data sets", description="Make data sets.")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    parser = add_command(kinds, "prepare", run_prepare, run_prepare.__doc__)
    add = parser.add_argument
    sets = f"{', '.join(CATALOG)} (default: all except `math`); your own name, with --from; or gym:TASK (reasoning-gym)"
    add("sets", nargs="*", metavar="SET", help=sets)
    add("--out", type=Path, help="folder to write to (default: data; for gym:TASK data/TASK)")
    source = "read SET from a Parquet or JSON file, or from a folder copied from the hub; can be repeated"
    add("--from", action="append", metavar="SET=FILE", help=source)
    columns = "columns of the files of --from by role, question or answer; a dot separates nested fields"
    add("--columns", nargs="+", metavar="ROLE=COLUMN", help=columns)
    levels = "difficulty levels to keep from the set `math` (default: 3 4 5)"
    add("--levels", nargs="+", metavar="LEVEL", choices=tuple("12345"), help=levels)
    add = parser.add_argument_group("only for gym:TASK").add_argument
    add("--size", type=int, metavar="N", help=f"training problems of each task (default: {GymRequest.size})")
    held_out = f"held-out problems of each task, in a file for `meds eval` (default: {GymRequest.held_out})"
    add("--held-out", type=int, metavar="N", help=held_out)
    add("--seed", type=int, metavar="N", help=f"seed of the problems (default: {GymRequest.seed})")
    threshold = f"minimum score that counts as right (default: {GymRequest.threshold})"
    add("--threshold", type=float, metavar="X", help=threshold)
    add("--instruction", metavar="TEXT", help="system message (default: asks for the answer in a box)")
    add("--set", action="append", metavar="KEY=VALUE", help="a setting of the task; can be repeated")
    parser = add_command(kinds, "arithmetic", run_arithmetic, run_arithmetic.__doc__)
    out = "folder to write to (default: %(default)s)"
    parser.add_argument("--out", type=Path, default=Path("assets/arithmetic"), help=out)
    parser.add_argument("--seed", type=int, default=0, help="seed of problems and policy (default: %(default)s)")


def run_prepare(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Make training sets and benchmarks from the Hugging Face hub or from files.

    Read problems from the Hugging Face hub or from files, drop duplicates, apply the prompt template, and write JSON
    lines for training and evaluation. Training questions that also occur in a benchmark of the same call are dropped,
    so prepare all sets in one call. Prints how many problems were read and dropped; NAME.counts.json has the counts.
    """
    options = {name: value for name, value in vars(arguments).items() if value is not None}
    is_gym = any(name.startswith(PREFIX) for name in arguments.sets)
    for name in SETS_ONLY if is_gym else GYM_ONLY:
        if name in options:
            hint = f"{'does not apply' if is_gym else 'applies only'} to {PREFIX}TASK. Leave it out."
            raise ConfigError(f"--{name.replace('_', '-')}", options[name], hint)
    return _prepare_gym(arguments.sets, options) if is_gym else _prepare_sets(arguments.sets, options)


def _prepare_sets(names: Sequence[str], options: dict[str, Any]) -> int:
    pairs = pairs_of("--from", options.get("from"), "SET=FILE")
    files, levels = {name: Path(file).expanduser() for name, file in pairs.items()}, options.get("levels")
    columns = pairs_of("--columns", options.get("columns"), "ROLE=COLUMN")
    sets = find_sets(names, files)
    if levels and not any(dataset.levels for dataset in sets):
        raise ConfigError("--levels", " ".join(levels), "applies only to math, which is not among the sets.")
    if levels:
        sets = [replace(dataset, levels=tuple(levels)) if dataset.levels else dataset for dataset in sets]
    from meds_openrlhf.data.prepare import prepare
    from meds_openrlhf.data.sources import COLUMNS, Source

    for role, column in columns.items():
        if role not in COLUMNS or not files:
            hint = (
                f"the role must be one of {', '.join(COLUMNS)}." if role not in COLUMNS else "applies only with --from."
            )
            raise ConfigError("--columns", f"{role}={column}", hint)
    out = options.get("out", DATA)
    sources = [Source(dataset, file, columns if file else {}) for dataset in sets for file in [files.get(dataset.name)]]
    prepared = prepare(sources, out, report=_say)
    print(_table(prepared), *_changed(sources, prepared), *_overlap(prepared), *_where(out, prepared), sep="\n")
    return 0


def _prepare_gym(names: Sequence[str], options: dict[str, Any]) -> int:
    for name in names:
        if not name.startswith(PREFIX):
            raise ConfigError("SET", name, f"cannot be combined with {PREFIX}TASK. Prepare it in another call.")
    settings = {key: value_of(word) for key, word in pairs_of("--set", options.get("set"), "KEY=VALUE").items()}
    for key, value in settings.items():
        try:
            json.dumps(value)
        except TypeError as error:
            hint = f"is not a JSON value ({error}). Put double quotes around the value."
            raise ConfigError("--set", f"{key}={value}", hint) from error
    tasks = [name.removeprefix(PREFIX) for name in dict.fromkeys(names)]
    given = {name: options[name] for name in GYM_ONLY if name in options and name != "set"}
    from meds_openrlhf.data.gym import prepare_gym

    out = options.get("out", DATA / "-".join(tasks))  # never over the other training sets
    prepared = prepare_gym(GymRequest(tasks=tasks, settings=settings, **given), out, report=_say)
    print(_table(prepared), *_where(out, prepared), sep="\n")
    return 0


def _table(prepared: Sequence[Prepared]) -> str:
    rows = [("set", "read", "kept", "in the paper", "dropped")]
    for file in prepared:
        for name, counts in file.counts.items():
            paper = CATALOG[name].paper if name in CATALOG else None
            rows.append((name, f"{counts.read:,}", f"{counts.kept:,}", paper or "-", counts.as_text() or "-"))
    return f"\n{aligned(rows, '<>>><')}\n"


def _overlap(prepared: Sequence[Prepared]) -> list[str]:
    """A line on how many training questions were dropped because a benchmark contains them."""
    benchmarks = [file.name for file in prepared if file.name != TRAINING_FILE]
    if not benchmarks or len(benchmarks) == len(prepared):
        return []
    from meds_openrlhf.data.prepare import IN_BENCHMARK

    found = sum(counts.dropped[IN_BENCHMARK] for file in prepared for counts in file.counts.values())
    return [f"{counted(found, 'training question')} dropped for being in {', '.join(benchmarks)}"]


def _changed(sources: Sequence[Source], prepared: Sequence[Prepared]) -> list[str]:
    """A line for each set that has changed on the hub."""
    read = {name: counts.read for file in prepared for name, counts in file.counts.items()}
    return [
        f"note: {source} has {counted(read[source.dataset.name], 'row')} instead of {source.dataset.rows:,}; "
        "results may differ"
        for source in sources
        if source.path is None and source.dataset.rows not in (None, read[source.dataset.name])
    ]


def _where(folder: Path, prepared: Sequence[Prepared]) -> list[str]:
    return [f"{counted(len(file.problems), 'problem')} in {file.path(folder)}" for file in prepared]


def run_arithmetic(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Make the demo's arithmetic problems and policy.

    Make arithmetic problems with known answers, and a tiny policy that makes systematic mistakes in them. Does
    nothing if the folder contains them already.
    """
    assets = make_arithmetic(arguments.out, arguments.seed)
    print(f"policy {assets.policy}, training problems {assets.train}, evaluation problems {assets.eval}")
    return 0


def make_arithmetic(out: Path, seed: int = 0) -> ArithmeticAssets:
    """Make the demo's task in ``out``. Raises ConfigError if that folder contains something else."""
    quiet_start(verbose=False)
    _say(f"{out}: arithmetic problems and a policy that makes mistakes in them")
    from meds_openrlhf.arithmetic.warm_start import prepare

    try:
        return prepare(out, seed=seed, report=print)
    except (ValueError, OSError) as error:
        raise ConfigError("the task's folder", out, f"cannot be written: {error}") from error
