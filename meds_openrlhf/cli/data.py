"""`meds data`: make data sets."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meds_openrlhf.cli.train import quiet_start
from meds_openrlhf.config import ConfigError
from meds_openrlhf.config.loader import value_of
from meds_openrlhf.data.catalog import CATALOG, TRAINING_FILE, DataSet, find_sets
from meds_openrlhf.data.gym import PREFIX, GymRequest
from meds_openrlhf.data.selection import IN_BENCHMARK

if TYPE_CHECKING:
    from meds_openrlhf.arithmetic.warm_start import ArithmeticAssets
    from meds_openrlhf.data.prepare import Prepared
    from meds_openrlhf.data.sources import Source

DATA = Path("data")
LEVELS = ("1", "2", "3", "4", "5")
_GYM_OPTIONS: tuple[tuple[str, type, object, str], ...] = (
    ("--size", int, GymRequest.size, "training problems of each task"),
    ("--held-out", int, GymRequest.held_out, "other problems of each task, in a file for `meds eval`"),
    ("--seed", int, GymRequest.seed, "of the problems"),
    ("--threshold", float, GymRequest.threshold, "the lowest score of a right answer"),
)


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser("data", help="make data sets", description="Make data sets.")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    _add_prepare(kinds)
    _add_arithmetic(kinds)


def _add_prepare(kinds: Any) -> None:
    parser = kinds.add_parser(
        "prepare",
        help="the training sets and benchmarks",
        description="Get problems from the Hugging Face hub or from files, drop duplicates, put the template around "
        "them, and write JSON lines to train and evaluate on. Training questions that are in one of the benchmarks of "
        "the same call are left out, so one call for all sets is the normal way. What became of every row is printed, "
        "and written beside the files.",
    )
    parser.add_argument(
        "sets",
        nargs="*",
        metavar="SET",
        help=f"any of {', '.join(CATALOG)} (all but math); a name of your own, with its --from; or tasks of "
        "reasoning-gym, as gym:chain_sum",
    )
    parser.add_argument("--out", type=Path, help="folder to write to (data; for tasks of reasoning-gym data/TASK)")
    parser.add_argument(
        "--from",
        dest="files",
        action="append",
        default=[],
        metavar="SET=FILE",
        help="read SET from a Parquet or JSON file, or a folder copied from the hub; can be given several times, and "
        "for training sets of your own",
    )
    parser.add_argument(
        "--levels", nargs="+", metavar="LEVEL", choices=LEVELS, help="of the problems of math to keep (3 4 5)"
    )
    gym = parser.add_argument_group("of gym:TASK alone")
    for flag, kind, default, help_text in _GYM_OPTIONS:
        gym.add_argument(flag, type=kind, default=None, metavar=kind.__name__.upper(), help=f"{help_text} ({default})")
    gym.add_argument("--instruction", metavar="TEXT", help="the system turn of the prompt (asks for a box)")
    gym.add_argument(
        "--set", action="append", metavar="KEY=VALUE", help="a setting of the task; can be given several times"
    )
    parser.set_defaults(run=run_prepare, takes_overrides=False)


def _add_arithmetic(kinds: Any) -> None:
    parser = kinds.add_parser(
        "arithmetic",
        help="the demo's task",
        description="Verifiable arithmetic problems and a tiny policy that starts out making systematic mistakes in "
        "them. Made from a seed; does nothing if OUT holds them already.",
    )
    parser.add_argument("--out", type=Path, default=Path("assets/arithmetic"), help="folder to make (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.set_defaults(run=run_arithmetic, takes_overrides=False)


# ── prepare ──


def run_prepare(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Prepare the sets and print what became of their rows."""
    gym = {name: value for name, value in vars(arguments).items() if name in _OF_GYM and value is not None}
    if any(name.startswith(PREFIX) for name in arguments.sets):
        return _run_gym(arguments, gym)
    for name, value in gym.items():
        raise ConfigError(f"--{name.replace('_', '-')}", value, f"is for {PREFIX}TASK only; leave it out")
    files = _parse_files(arguments.files)
    sets = _with_levels(find_sets(arguments.sets, files), arguments.levels)
    from meds_openrlhf.data.prepare import prepare
    from meds_openrlhf.data.sources import Source

    out = arguments.out or DATA
    sources = [Source(dataset, files.get(dataset.name)) for dataset in sets]
    prepared = prepare(sources, out, report=lambda line: print(line, flush=True))
    print(f"\n{_as_table(prepared)}\n")
    print("\n".join(_notes(sources, prepared) + _overlap(prepared) + _where(out, prepared)))
    return 0


_OF_GYM = ("size", "held_out", "seed", "threshold", "instruction", "set")


def _run_gym(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    for name in arguments.sets:
        if not name.startswith(PREFIX) or arguments.sets.count(name) > 1:
            hint = f"cannot be prepared with {PREFIX} tasks, each named once; use a call and an --out of its own"
            raise ConfigError("SET", name, hint)
    for flag, value in (("--from", arguments.files), ("--levels", arguments.levels)):
        if value:
            raise ConfigError(flag, value, f"is not for {PREFIX}TASK; leave it out")
    settings = _parse_settings(options.pop("set", []))
    tasks = [name.removeprefix(PREFIX) for name in arguments.sets]
    request = GymRequest(tasks=tasks, settings=settings, **options)
    from tqdm import tqdm

    from meds_openrlhf.data.gym import prepare_gym

    def watch(numbers: Any, total: int) -> Any:
        return tqdm(numbers, total=total, disable=None, leave=False)

    out = arguments.out or DATA / "-".join(tasks)  # never over the other training sets
    prepared = prepare_gym(request, out, report=lambda line: print(line, flush=True), watch=watch)
    print(f"\n{_as_table(prepared)}\n")
    print("\n".join(_where(out, prepared)))
    return 0


def _parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, word = pair.partition("=")
        if not equals or not key or key in settings:
            raise ConfigError("--set", pair, "is no pair or a second one; write each KEY=VALUE once")
        settings[key] = value_of(word)
        try:
            json.dumps(settings[key])
        except TypeError as error:
            raise ConfigError("--set", pair, f"is no text, number, list or switch ({error}); quote it") from error
    return settings


def _parse_files(pairs: Sequence[str]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for pair in pairs:
        name, _, file = pair.partition("=")
        if not name or not file:
            raise ConfigError("--from", pair, "is no pair; write SET=FILE")
        if name in files:
            raise ConfigError("--from", pair, f"is a second file for {name}; give one")
        files[name] = Path(file).expanduser()
    return files


def _with_levels(sets: list[DataSet], levels: Sequence[str] | None) -> list[DataSet]:
    """The sets with their levels replaced by ``levels``; sets that keep every level stay as they are."""
    if levels is None:
        return sets
    if not any(dataset.levels for dataset in sets):
        raise ConfigError("--levels", " ".join(levels), "is for math only, which is not one of the sets; leave it out")
    return [replace(dataset, levels=tuple(levels)) if dataset.levels else dataset for dataset in sets]


def _as_table(prepared: Sequence[Prepared]) -> str:
    from meds_openrlhf.report.output import markdown_table

    rows = []
    for file in prepared:
        for name, counts in file.counts.items():
            dropped = ", ".join(f"{reason} {number:,}" for reason, number in counts.reasons().items())
            paper = CATALOG[name].paper if name in CATALOG else None
            rows.append((name, f"{counts.read:,}", f"{counts.kept:,}", paper or "-", dropped or "-"))
    return markdown_table(("set", "read", "kept", "in the paper", "dropped"), rows, "<>>><")


def _overlap(prepared: Sequence[Prepared]) -> list[str]:
    """A line on how many training questions were left out because a benchmark asks them."""
    benchmarks = [file.name for file in prepared if file.name != TRAINING_FILE]
    train = next((file for file in prepared if file.name == TRAINING_FILE), None)
    if train is None or not benchmarks:
        return []
    found = sum(counts.dropped[IN_BENCHMARK] for counts in train.counts.values())
    return [f"training questions left out because they are in {', '.join(benchmarks)}: {found:,}"]


def _notes(sources: Sequence[Source], prepared: Sequence[Prepared]) -> list[str]:
    """A line for each set that has changed on the hub."""
    read = {name: counts.read for file in prepared for name, counts in file.counts.items()}
    return [
        f"note: {source} has {read[source.dataset.name]:,} rows, not the {source.dataset.rows:,} that it had; results "
        "may not be comparable"
        for source in sources
        if source.path is None and source.dataset.rows not in (None, read[source.dataset.name])
    ]


def _where(folder: Path, prepared: Sequence[Prepared]) -> list[str]:
    numbers = [len(file.problems) for file in prepared]
    return [f"{n:,} problem{'' if n == 1 else 's'} in {file.path(folder)}" for n, file in zip(numbers, prepared)]


# ── arithmetic ──


def run_arithmetic(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Make the demo's task and print its paths."""
    assets = make_arithmetic(arguments.out, arguments.seed)
    print(f"policy {assets.policy}, training problems {assets.train}, evaluation problems {assets.eval}")
    return 0


def make_arithmetic(out: Path, seed: int = 0) -> ArithmeticAssets:
    """Make the demo's task in ``out``. Raises ConfigError if that folder holds something else."""
    quiet_start(verbose=False)
    print(f"{out}: arithmetic problems and a policy that makes mistakes in them", flush=True)
    from meds_openrlhf.arithmetic.warm_start import prepare

    try:
        return prepare(out, seed=seed, report=print)
    except (ValueError, OSError) as error:
        raise ConfigError("the task's folder", str(out), f"cannot be made: {error}") from error
