"""`meds data`: make data sets."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meds_openrlhf.config import ConfigError

if TYPE_CHECKING:
    from meds_openrlhf.data.warm_start import ArithmeticAssets


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser("data", help="make data sets", description="Make data sets.")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    arithmetic = kinds.add_parser(
        "arithmetic",
        help="the demo's task",
        description="Verifiable arithmetic problems and a tiny policy that starts out making systematic mistakes in "
        "them. Made from a seed; done at once where OUT holds them already.",
    )
    arithmetic.add_argument("--out", type=Path, default=Path("assets/arithmetic"), help="folder to make (%(default)s)")
    arithmetic.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.set_defaults(run=run, takes_overrides=False)


def run(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Make the data set and say where it is."""
    assets = make_arithmetic(arguments.out, arguments.seed)
    print(f"policy {assets.policy}, training problems {assets.train}, evaluation problems {assets.eval}")
    return 0


def make_arithmetic(out: Path, seed: int = 0) -> ArithmeticAssets:
    """Make the demo's task in ``out``. Raises ConfigError where that folder holds something else."""
    from meds_openrlhf.data.warm_start import prepare

    try:
        return prepare(out, seed=seed, report=print)
    except (ValueError, OSError) as error:
        raise ConfigError("the task's folder", str(out), f"cannot be made: {error}") from error
