"""Do a run's clusters, by each of the paper's features, agree with the categories that a judge gave its responses?

Pairs are within a prompt, like clusters. They agree if both labellings say "same" or both say "different".
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from analysis.agreement import pairwise_agreement, separate_noise
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.clustering import NOISE
from meds_openrlhf.report.output import markdown_table, shown
from meds_openrlhf.runs.clusters import SINGLE, TRANSFORMS, VARIANTS, labels_of_feature


@dataclass(frozen=True)
class VariantAgreement:
    """Agreement of a feature's clusters with the categories on pairs of judged responses; None if there are no pairs.

    ``noise_alone`` treats each response in no cluster as a separate kind, ``noise_together`` all of them as one kind.
    """

    variant: str
    clusters: int  # number of clusters with judged responses
    noise: int  # number of judged responses in no cluster
    noise_together: float | None
    noise_alone: float | None


def agreements(
    wrong: pa.Table,
    rows: NDArray[np.int64],
    categories: NDArray[np.int64],
    own: FeatureTransform,
    preset: str,
    most_pairs: int | None,
    seed: int,
) -> tuple[list[VariantAgreement], int]:
    """Agreement of each feature's clusters with the ``categories`` (k,) of ``rows`` (k,), and the number of pairs.

    The features are those of the paper's ablation, and the run's ``own`` if it is none of them. All rows of ``wrong``
    are clustered, as in the memory.
    """
    layers = wrong.schema.field("layer_logits").type.list_size
    prompts = wrong["prompt"].take(pa.array(rows)).to_pylist()
    pairs = pairs_of_prompts(prompts, most_pairs, seed)
    found = [
        _agreement(name, labels_of_feature(wrong, transform, preset)[rows], categories, pairs)
        for name, transform in features_of(own, layers).items()
    ]
    return found, len(pairs)


def features_of(own: FeatureTransform, layers: int) -> dict[str, FeatureTransform | None]:
    """The features by name, in the paper's notation for a model of so many ``layers``; None is `SINGLE`."""
    features = {paper_name(variant, layers): TRANSFORMS.get(variant) for variant in VARIANTS}
    matrix = own.matrix(layers)
    if not any(feature is not None and np.array_equal(feature.matrix(layers), matrix) for feature in features.values()):
        features[f"{len(matrix)} (own)"] = own
    return features


def name_of(transform: FeatureTransform, own: FeatureTransform, layers: int) -> str | None:
    """The name of ``transform`` in `features_of`, None if it is none of them."""
    found = ((name, feature) for name, feature in features_of(own, layers).items() if feature is not None)
    matrix = transform.matrix(layers)
    return next((name for name, feature in found if np.array_equal(feature.matrix(layers), matrix)), None)


def paper_name(variant: str, layers: int) -> str:
    """A variant's name in the paper's notation, e.g. 14-diff for the last half's differences of 28 layers."""
    chosen = layers // 2 if variant.startswith("last-half") else layers
    return variant if variant == SINGLE else f"{chosen}{'-diff' if variant.endswith('-diff') else ''}"


def pairs_of_prompts(prompts: Sequence[str], most: int | None, seed: int) -> NDArray[np.int64]:
    """Pairs (p, 2) of rows with the same prompt: all, or a random sample of ``most``."""
    rows: dict[str, list[int]] = {}
    for row, prompt in enumerate(prompts):
        rows.setdefault(prompt, []).append(row)
    pairs = [pair for places in rows.values() for pair in combinations(places, 2)]
    if most is not None and most < len(pairs):
        pairs = random.Random(f"{seed}-pairs").sample(pairs, most)
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def agreement_table(found: Sequence[VariantAgreement]) -> str:
    """A row per feature."""
    header = ["feature", "clusters", "in none", "agreement (%)", "each in none a kind of its own (%)"]
    rows = [
        [row.variant, str(row.clusters), str(row.noise), *map(_percent, (row.noise_together, row.noise_alone))]
        for row in found
    ]
    return markdown_table(header, rows)


def _agreement(
    variant: str, labels: NDArray[np.int64], categories: NDArray[np.int64], pairs: NDArray[np.int64]
) -> VariantAgreement:
    return VariantAgreement(
        variant=variant,
        clusters=len(set(labels.tolist()) - {NOISE}),
        noise=int((labels == NOISE).sum()),
        noise_together=pairwise_agreement(labels, categories, pairs) if len(pairs) else None,
        noise_alone=pairwise_agreement(separate_noise(labels), categories, pairs) if len(pairs) else None,
    )


def _percent(value: float | None) -> str:
    return shown(None if value is None else 100 * value)
