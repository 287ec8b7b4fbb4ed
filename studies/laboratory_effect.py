"""How much of what a group of rollouts teaches comes from the penalties, in the runs of a study, and with larger ones.

    python -m studies.laboratory_effect runs/laboratory --out results/laboratory/penalty_effect.csv

The rollouts of each run's last quarter of steps are read, so the runs have to be on this machine. A line per run, and a
column for the penalties as they were, three, ten and thirty times as large: alpha and beta times that, everything else
as it was. docs/metrics.md describes `meds/penalty_effect`, which later runs have as a metric.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.shaping.penalty import penalty_effect
from meds_openrlhf.tracking.rollout_log import read_step

TIMES = (1, 3, 10, 30)


def main(argv: Sequence[str] | None = None) -> None:
    """Write the table from the command line."""
    parser = argparse.ArgumentParser(prog="python -m studies.laboratory_effect", description=__doc__)
    parser.add_argument("runs", type=Path, help="the folder with the runs of a study")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="CSV file to write")
    args = parser.parse_args(argv)
    with args.out.open("w", newline="") as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow(["run", *(f"{times}x" for times in TIMES)])
        for folder in sorted(args.runs.iterdir()):
            run = RunPaths(folder)
            steps = run.rollout_steps()
            if steps:
                effects = np.mean(list(effects_of(run, steps[-max(1, len(steps) // 4) :])), axis=0)
                table.writerow([folder.name, *(f"{effect:.6f}" for effect in effects)])


def effects_of(run: RunPaths, steps: Sequence[int]) -> Iterator[list[float]]:
    """Yield the effect of the penalties in each of the steps, for all `TIMES`."""
    for step in steps:
        rollouts = read_step(run, step, ["prompt", "reward", "penalty"])
        assert rollouts is not None, f"the rollouts of step {step} of {run.root} have gone"
        groups = (pc.count_distinct(rollouts["prompt"]).as_py(), -1)
        raw, penalty = (rollouts[name].to_numpy().reshape(groups) for name in ("reward", "penalty"))
        yield [penalty_effect(raw, raw - times * penalty) for times in TIMES]


if __name__ == "__main__":
    main()
