"""What the clustering presets make of sets whose modes are known: a markdown table.

A mode is a centre and Gaussian spread in 14 dimensions, scaled to unit length. Tight and loose: the spread's standard
deviation is 0.02 and 0.077 of the distance between centres. Scatter is random directions, and noise in the truth. Each
cell holds means over the seeds: clusters found, the share of rows in clusters, and the adjusted Rand index against the
truth, in both of which each noise row is a group of its own. From the repository's root:

    python -m benchmarks.clustering_cases
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from meds_openrlhf.memory.clustering import NOISE, Clustering, cluster

Rows = NDArray[np.float64]
Truth = NDArray[np.int64]
Case = Callable[[np.random.Generator, float], tuple[Rows, Truth]]

DIMENSIONS = 14
PRESETS = {
    "paper": Clustering(),
    "reference": Clustering(exact=False),
    "robust": Clustering(allow_single_cluster=True, selection_epsilon="auto"),
}
LOOSENESS = {"tight": 0.02, "loose": 0.077}


def unit(points: Rows) -> Rows:
    """Points (n, d) at length 1."""
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def centres(generator: np.random.Generator, count: int, apart: float) -> Rows:
    """Unit vectors (count, d), each at distance ``apart`` from all others."""
    directions = np.linalg.qr(generator.normal(size=(DIMENSIONS, DIMENSIONS)))[0]
    along = apart / np.sqrt(2)
    return np.sqrt(1 - along**2) * directions[0] + along * directions[1 : count + 1]


def modes(
    generator: np.random.Generator,
    looseness: float,
    sizes: list[int],
    apart: float = 0.13,
    directions: int = DIMENSIONS,
) -> tuple[Rows, Truth]:
    """One mode per size; ``directions``: how many the spread has, with the same length in total."""
    truth = np.repeat(np.arange(len(sizes)), sizes)
    basis = np.linalg.qr(generator.normal(size=(DIMENSIONS, directions)))[0]
    spread = generator.normal(size=(len(truth), directions)) * np.sqrt(DIMENSIONS / directions)
    return unit(centres(generator, len(sizes), apart)[truth] + looseness * apart * spread @ basis.T), truth


def with_scatter(generator: np.random.Generator, looseness: float, sizes: list[int]) -> tuple[Rows, Truth]:
    """Modes, and a quarter as many random directions: a fifth of all rows."""
    points, truth = modes(generator, looseness, sizes)
    scatter = unit(generator.normal(size=(len(points) // 4, DIMENSIONS)))
    return np.concatenate([points, scatter]), np.concatenate([truth, np.full(len(scatter), NOISE)])


def scatter_alone(generator: np.random.Generator, looseness: float) -> tuple[Rows, Truth]:
    """Sixty random directions."""
    return unit(generator.normal(size=(60, DIMENSIONS))), np.full(60, NOISE)


def drifting(generator: np.random.Generator, looseness: float) -> tuple[Rows, Truth]:
    """One mode of 48 whose centre moves by 0.13 from the first row to the last."""
    start, end = centres(generator, 2, 0.13)
    time = np.linspace(0, 1, 48)[:, None]
    spread = looseness * 0.13 * generator.normal(size=(48, DIMENSIONS))
    return unit(start * (1 - time) + end * time + spread), np.zeros(48, dtype=np.int64)


def repeated(generator: np.random.Generator, looseness: float, sizes: list[int], share: float) -> tuple[Rows, Truth]:
    """Modes in which so large a ``share`` of the rows are copies of the others, chosen at random."""
    points, truth = modes(generator, looseness, sizes)
    for mode in range(len(sizes)):
        rows = np.flatnonzero(truth == mode)
        originals = max(1, round(len(rows) * (1 - share)))
        points[rows[originals:]] = points[generator.choice(rows[:originals], len(rows) - originals)]
    return points, truth


def one_wording(generator: np.random.Generator, looseness: float, sizes: list[int]) -> tuple[Rows, Truth]:
    """Modes in which four fifths of the rows are copies of one, and the rest are single."""
    points, truth = modes(generator, looseness, sizes)
    for mode, size in enumerate(sizes):
        rows = np.flatnonzero(truth == mode)
        points[rows[: size * 4 // 5]] = points[rows[0]]
    return points, truth


def word_for_word(generator: np.random.Generator, looseness: float) -> tuple[Rows, Truth]:
    """Three answers 15 times each, 0.13 apart, and five that were given once, as far from them: noise."""
    points = centres(generator, 8, 0.13)
    truth = np.concatenate([np.repeat(np.arange(3), 15), np.full(5, NOISE)])
    return np.concatenate([np.repeat(points[:3], 15, axis=0), points[3:]]), truth


CASES: dict[str, Case] = {
    "one mode of 4": partial(modes, sizes=[4]),
    "one of 8": partial(modes, sizes=[8]),
    "one of 48": partial(modes, sizes=[48]),
    "one of 160": partial(modes, sizes=[160]),
    "two of 24": partial(modes, sizes=[24, 24]),
    "46 and 2": partial(modes, sizes=[46, 2]),
    "44 and 4": partial(modes, sizes=[44, 4]),
    "three of 16": partial(modes, sizes=[16] * 3),
    "six of 8": partial(modes, sizes=[8] * 6),
    "six of 4": partial(modes, sizes=[4] * 6),
    "one of 48, 3 directions": partial(modes, sizes=[48], directions=3),
    "three of 16, 3 directions": partial(modes, sizes=[16] * 3, directions=3),
    "one of 48, 0.01 apart": partial(modes, sizes=[48], apart=0.01),
    "three of 16, 0.01 apart": partial(modes, sizes=[16] * 3, apart=0.01),
    "six of 8, 0.01 apart": partial(modes, sizes=[8] * 6, apart=0.01),
    "one of 48, 1.0 apart": partial(modes, sizes=[48], apart=1.0),
    "three of 16, 1.0 apart": partial(modes, sizes=[16] * 3, apart=1.0),
    "six of 8, 1.0 apart": partial(modes, sizes=[8] * 6, apart=1.0),
    "one of 48 drifting": drifting,
    "one of 40 and scatter": partial(with_scatter, sizes=[40]),
    "two of 24 and scatter": partial(with_scatter, sizes=[24, 24]),
    "scatter alone": scatter_alone,
    "three of 16, 80 % copies": partial(repeated, sizes=[16] * 3, share=0.8),
    "three of 16, 80 % one wording": partial(one_wording, sizes=[16] * 3),
    "one of 48, 80 % one wording": partial(one_wording, sizes=[48]),
    "one of 48, 80 % copies": partial(repeated, sizes=[48], share=0.8),
    "48 identical": partial(repeated, sizes=[48], share=1.0),
    "three of 16 identical": partial(repeated, sizes=[16] * 3, share=1.0),
    "three of 15 identical, 5 rare": word_for_word,
}
SAME_TIGHT_AND_LOOSE = {"scatter alone", "48 identical", "three of 16 identical", "three of 15 identical, 5 rare"}


def groups(labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """Labels (n,) with each noise row in a group of its own."""
    return np.where(labels == NOISE, -1 - np.arange(len(labels)), labels)


def measure(case: Case, looseness: float, settings: Clustering, seeds: int) -> str:
    """Mean clusters found, share of rows in clusters and adjusted Rand index."""
    results = []
    for seed in range(seeds):
        points, truth = case(np.random.default_rng(seed), looseness)
        labels = cluster(points, settings)
        results.append((labels.max() + 1, (labels != NOISE).mean(), adjusted_rand_score(groups(truth), groups(labels))))
    clusters, share, rand = np.mean(results, axis=0)
    return f"{clusters:.1f}, {share:.2f}, {rand:.2f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="sets per cell")
    seeds = parser.parse_args().seeds
    print("| case | |", " | ".join(PRESETS), "|")
    print("|---|---|" + "---|" * len(PRESETS))
    for name, case in CASES.items():
        for kind, looseness in LOOSENESS.items():
            if name in SAME_TIGHT_AND_LOOSE and kind == "loose":
                continue
            cells = [measure(case, looseness, settings, seeds) for settings in PRESETS.values()]
            print(f"| {name} | {'' if name in SAME_TIGHT_AND_LOOSE else kind} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
