"""What the toy's map predicted for the second study, and what training found: a figure from committed results.

    python -m studies.predicted --out docs/images/predicted.png

It reads the toy's maps and the results of the second study's three files.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from meds_openrlhf.results.figures import COLORS, panels, write_figure
from meds_openrlhf.results.paired import t_interval
from studies.results import read_results
from studies.study import load_study
from studies.toy_map import ATTEMPTS
from studies.verdicts import differences_of

MAPS = ("results/toy-map/map.csv", "results/toy-forks/map.csv", "results/toy-forks-long/map.csv")
FIRST, TRUE = "the toy, expected returns", "the toy, true returns"
BARS = {FIRST: ("#f3c96b", 0.7), TRUE: (COLORS[5], 0.35)}  # color and height
STUDIES = {  # each prediction, and its returns: how often a prompt is generated for
    "studies/forks.yaml": {FIRST: 30, TRUE: 16},
    "studies/corners.yaml": {FIRST: 30},
    "studies/forks-long.yaml": {FIRST: 60},
}
CELLS = {  # around each task: kinds of errors, and shares of right responses before training
    "forks": ((16, 32), (0.02, 0.06)),
    "forks-common": ((16, 32), (0.2,)),
    "forks-few": ((4,), (0.02, 0.06)),
}


@dataclass(frozen=True)
class Row:
    """Of a task and method, differences to DAPO in pass@32 on held-out problems, in points."""

    name: str
    predicted: dict[str, tuple[float, float]]  # by the bars' names; those with cells around the task
    found: float
    interval: tuple[float, float]


def rows() -> Iterator[Row]:
    """The rows of all methods with results."""
    cells = pd.concat(map(pd.read_csv, MAPS))
    for file, assumed in STUDIES.items():
        study = load_study(Path(file))
        results, metric = read_results(study), study.rule.primary[0]
        for task in study.tasks:
            kinds, rights = CELLS[task]
            around = cells[cells.kinds.isin(kinds) & cells.right.isin(rights)]
            for method in list(study.methods)[1:]:
                gaps, missing = differences_of(study, results, ((method, metric), ("dapo", metric)), (task,))
                if missing:
                    continue
                by_returns = around[around.method == method].groupby("returns")[f"pass@{ATTEMPTS}/eval"]
                ranges = {returns: (values.min(), values.max()) for returns, values in by_returns}
                predicted = {name: ranges[returns] for name, returns in assumed.items() if returns in ranges}
                name = task if len(study.tasks) > 1 else study.name
                yield Row(f"{name}: {method}", predicted, 100 * gaps.mean(), t_interval(100 * gaps))


def drawn(found: list[Row]) -> Figure:
    """Bars of the predictions, and points with intervals."""
    title = f"pass@{ATTEMPTS} on held-out problems against DAPO, points"
    figure, (axes,) = panels([title], width=7.5, height=0.32 * len(found) + 0.8)
    for place, row in enumerate(found):
        for name, (low, high) in row.predicted.items():
            color, height = BARS[name]
            axes.barh(place, high - low, height, low, color=color, label=name)
        axes.plot(row.interval, (place, place), color=COLORS[0])
        axes.plot(row.found, place, "o", color=COLORS[0], label="found, with its 95 % interval")
    axes.axvline(0, color="#888888", linewidth=0.8)
    axes.set_yticks(range(len(found)), [row.name for row in found])
    axes.invert_yaxis()
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles))
    figure.legend(unique.values(), unique, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Draw what the toy predicted beside what training found.")
    parser.add_argument("--out", type=Path, required=True, help="the figure's file")
    write_figure(drawn(list(rows())), parser.parse_args().out)


if __name__ == "__main__":
    main()
