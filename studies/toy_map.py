"""A map of where a memory of errors should help, from a toy that takes seconds: it predicts the runs of studies/.

    python -m studies.toy_map --out results/toy-map
    python -m studies.toy_map --out results/toy-forks --kinds 16 32 --returns 16 --right 0.02 0.06 --drawn 6144

The policy is linear: a prompt's features x (d,) give it one logit for each of K + 1 ways to answer, of which one is
right, and it learns as in DAPO from groups of responses. Ways are known, so clusters are perfect. It has no words, no
length and no network: a mechanism, not evidence. Each cell of the map fixes three things:

    kinds    how many kinds of errors compete, K
    returns  how often each prompt is generated for; all cells of a map generate equally many responses
    right    the share of right responses before training

map.csv has a line for each cell and method: the mean paired difference to DAPO after training and its standard error.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from meds_openrlhf.config import PenaltySettings
from meds_openrlhf.files import write_atomically
from meds_openrlhf.results.figures import write_figure
from meds_openrlhf.shaping.exploration import pass_at_k_advantages
from meds_openrlhf.shaping.methods import shape, weigh
from meds_openrlhf.shaping.weights import shuffled

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.integer]

FEATURES = 16  # d
GROUPS, RESPONSES = 32, 8  # of a step
EXTRAS = 8  # groups without a right response, at most
LOOK_AHEAD = 8 * GROUPS  # prompts of a step, at most
HELD_OUT = 400  # prompts
RATE = 0.35  # of learning
SPREAD = 1.0  # deviation of the first policy's logits between prompts
ATTEMPTS = 32  # k of pass@k
MEDS = PenaltySettings()
UNCAPPED = PenaltySettings(alpha=1.0, beta=100.0)


@dataclass(frozen=True)
class Cell:
    """A place on the map; see the module's docstring."""

    kinds: int
    returns: int
    right: float
    drawn: int = 9600  # prompts in all, with repetitions


@dataclass(frozen=True)
class Step:
    """The groups of a step: sizes (g, N) of the clusters before it, and verdicts; extras come last."""

    sizes: Ints
    wrong: Bools
    number: int


def normalized(rewards: Floats) -> Floats:
    """Advantages (g, N) relative to the group; 0 in groups of equal rewards."""
    centered = rewards - rewards.mean(axis=1, keepdims=True)
    deviation = rewards.std(axis=1, ddof=1, keepdims=True)
    return np.where(deviation > 1e-9, centered / (deviation + 1e-9), 0.0)


def dapo(step: Step) -> Floats:
    """Advantages of DAPO; groups without a right response have none."""
    return normalized((~step.wrong).astype(float))


def meds(step: Step, penalty: PenaltySettings = MEDS) -> Floats:
    """Those of the paper's penalty; a wrong response never gains from it."""
    penalized = normalized(shape((~step.wrong).astype(float), ~step.wrong, step.sizes, penalty))
    return np.where(step.wrong, np.minimum(penalized, np.maximum(dapo(step), 0.0)), penalized)


def weighed(step: Step, form: str, extras: bool = False) -> Floats:
    """DAPO's, weighed as in training; with ``extras`` those of groups without a right response are negative."""
    advantages, is_extra = dapo(step), np.logical_and(step.wrong.all(axis=1, keepdims=True), extras)
    factors, added = weigh(advantages, step.sizes, step.wrong, step.wrong, is_extra, form)
    return advantages * factors + added


def exchanged(step: Step) -> Step:
    """The step with sizes that have no information."""
    return replace(step, sizes=shuffled(step.sizes, step.wrong, [step.number]))


METHODS: dict[str, Callable[[Step], Floats]] = {
    "dapo": dapo,
    "meds": meds,
    "meds-uncapped": lambda step: meds(step, UNCAPPED),
    "weights": lambda step: weighed(step, "weights"),
    "weights-shuffled": lambda step: weighed(exchanged(step), "weights"),
    "extras": lambda step: weighed(step, "reward", extras=True),
    "weights-extras": lambda step: weighed(step, "weights", extras=True),
    "pass-at-k": lambda step: pass_at_k_advantages((~step.wrong).astype(float), 4),
}
WITH_EXTRAS = {"extras", "weights-extras"}


class World:
    """Prompts, their right way, and the first policy, all from a seed and the same for all methods."""

    def __init__(self, cell: Cell, seed: int) -> None:
        rng = np.random.default_rng([seed, cell.kinds])
        ways, prompts = cell.kinds + 1, round(cell.drawn / cell.returns)
        truth = rng.normal(size=(FEATURES, ways))
        self.drawn = cell.drawn
        self.x, self.held_out = (rng.normal(size=(count, FEATURES)) / FEATURES**0.5 for count in (prompts, HELD_OUT))
        self.right, self.held_out_right = ((x @ truth).argmax(axis=1) for x in (self.x, self.held_out))
        habits = SPREAD * rng.normal(size=(FEATURES, ways))
        low, high = -20.0, 20.0  # how far the first policy is from the truth, by bisection
        for _ in range(40):
            middle = (low + high) / 2
            share = right_share(self.held_out, self.held_out_right, habits + middle * truth).mean()
            low, high = (low, middle) if share > cell.right else (middle, high)
        self.first = habits + middle * truth


def softmax(logits: Floats) -> Floats:
    """Probabilities (n, ways)."""
    raised: Floats = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def right_share(x: Floats, right: Ints, policy: Floats) -> Floats:
    """The probability (n,) of a right response to each prompt."""
    return np.asarray(softmax(x @ policy)[np.arange(len(x)), right])


def orders(world: World, rng: np.random.Generator) -> Iterator[int]:
    """The prompts of all draws, epoch by epoch."""
    epochs = itertools.chain.from_iterable(rng.permutation(len(world.x)) for _ in itertools.count())
    return itertools.islice(epochs, world.drawn)


def train(world: World, method: str, seed: int) -> dict[str, float]:
    """Train on all draws; returns pass@1 and pass@k on training and held-out prompts."""
    rng = np.random.default_rng([seed, 1])
    policy, stored = world.first.copy(), np.zeros((len(world.x), world.first.shape[1]), np.int64)
    ahead, rest = list[int](), orders(world, rng)
    for number in itertools.count():
        ahead += itertools.islice(rest, LOOK_AHEAD - len(ahead))
        if not ahead:
            break
        drawn = np.array(ahead)
        probabilities = softmax(world.x[drawn] @ policy)
        uniform = rng.random((len(drawn), RESPONSES, 1))
        given = (uniform > probabilities.cumsum(axis=1)[:, None, :-1]).sum(axis=2)  # (n, N) ways
        wrong = given != world.right[drawn][:, None]
        mixed, all_wrong = wrong.any(axis=1) & ~wrong.all(axis=1), wrong.all(axis=1)
        full = np.flatnonzero(mixed.cumsum() == GROUPS)
        used = full[0] + 1 if len(full) else len(drawn)
        del ahead[:used]
        chosen = np.flatnonzero(mixed[:used])
        if method in WITH_EXTRAS:
            chosen = np.r_[chosen, np.flatnonzero(all_wrong[:used])[:EXTRAS]]
        if not len(chosen):
            continue
        x, ways, amiss = world.x[drawn[chosen]], given[chosen], wrong[chosen]
        step = Step(stored[drawn[chosen]][np.arange(len(chosen))[:, None], ways], amiss, number)
        advantages = METHODS[method](step)
        toward = np.zeros((len(chosen), policy.shape[1]))
        np.add.at(toward, (np.arange(len(chosen))[:, None], ways), advantages)
        toward -= advantages.sum(axis=1, keepdims=True) * probabilities[chosen]
        responses = max(int(mixed[:used].sum()), 1) * RESPONSES
        policy += RATE * FEATURES / responses * x.T @ toward
        np.add.at(stored, (np.repeat(drawn[chosen], amiss.sum(axis=1)), ways[amiss]), 1)
    found = dict[str, float]()
    for name, x, right in (("train", world.x, world.right), ("eval", world.held_out, world.held_out_right)):
        share = right_share(x, right, policy)
        found |= {f"pass@1/{name}": share.mean(), f"pass@{ATTEMPTS}/{name}": (1 - (1 - share) ** ATTEMPTS).mean()}
    return found


def lines_of(cell: Cell, seeds: int) -> list[dict[str, float | str]]:
    """The map's lines of a cell, in points: DAPO's own scores, and the differences of each other method to it."""
    worlds = [World(cell, seed) for seed in range(seeds)]
    scores = {
        method: pd.DataFrame([train(world, method, seed) for seed, world in enumerate(worlds)]) * 100
        for method in METHODS
    }
    lines = []
    for method, table in scores.items():
        gaps = table if method == "dapo" else table - scores["dapo"]
        errors = {f"{name} s.e.": value for name, value in (gaps.std() / seeds**0.5).items()}
        lines.append({**vars(cell), "method": method, **gaps.mean(), **errors})
    return lines


def drawn_map(table: pd.DataFrame) -> Figure:
    """A row of panels for each method, a panel for each share of right responses: kinds across, returns up."""
    methods = [method for method in METHODS if method != "dapo"]
    rights = sorted(table.right.unique())
    figure = Figure(figsize=(2.9 * len(rights) + 1.4, 1.6 * len(methods)), layout="constrained")
    grid = figure.subplots(len(methods), len(rights), sharex=True, sharey=True, squeeze=False)
    limit = 6.0  # points; stronger colors would hide the small ones
    for (row, method), (column, right) in itertools.product(enumerate(methods), enumerate(rights)):
        part = table[(table.method == method) & (table.right == right)]
        values = part.pivot(index="returns", columns="kinds", values=f"pass@{ATTEMPTS}/eval")
        axes = grid[row, column]
        image = axes.imshow(values, cmap="RdBu", vmin=-limit, vmax=limit, origin="lower", aspect="auto")
        for (y, x), value in np.ndenumerate(values.to_numpy()):
            color = "white" if abs(value) > 0.6 * limit else "black"
            axes.text(x, y, f"{value:+.1f}", ha="center", va="center", fontsize=7, color=color)
        axes.set_xticks(range(len(values.columns)), [str(kinds) for kinds in values.columns])
        axes.set_yticks(range(len(values.index)), [f"{returns:g}" for returns in values.index])
        if row == 0:
            axes.set_title(f"{right:.0%} right at first", fontsize=9)
        if column == 0:
            axes.set_ylabel(f"{method}\nreturns", fontsize=8)
        if row == len(methods) - 1:
            axes.set_xlabel("kinds of errors", fontsize=8)
    label = f"pass@{ATTEMPTS} on held-out prompts against DAPO, points"
    figure.colorbar(image, ax=grid, shrink=0.4, label=label)
    return figure


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Map where a memory of errors should help, from a toy.")
    parser.add_argument("--out", type=Path, required=True, help="folder for map.csv and map.png")
    parser.add_argument("--kinds", type=int, nargs="+", default=[2, 4, 8, 16, 32, 100])
    parser.add_argument("--returns", type=int, nargs="+", default=[3, 10, 30, 100])
    parser.add_argument("--right", type=float, nargs="+", default=[0.02, 0.06, 0.2])
    parser.add_argument("--drawn", type=int, default=Cell.drawn, help="prompts in all, with repetitions")
    parser.add_argument("--seeds", type=int, default=8)
    given = parser.parse_args()
    lines = []
    for kinds, returns, right in itertools.product(given.kinds, given.returns, given.right):
        lines += lines_of(Cell(kinds, returns, right, given.drawn), given.seeds)
        print(f"{kinds} kinds, {returns} returns, {right:.0%} right", flush=True)
    table = pd.DataFrame(lines)
    write_atomically(given.out / "map.csv", table.to_csv(index=False, float_format="%.3f", lineterminator="\n"))
    write_figure(drawn_map(table), given.out / "map.png")


if __name__ == "__main__":
    main()
