"""Agreement of two labellings of the same rollouts: clusters with known mistakes, or with a judge's categories.

The measure is that of the paper's ablation (Section 5.3): the share of pairs of rollouts that both labellings put into
the same cluster, or both into different clusters; over all pairs, the Rand index.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.metrics import (  # type: ignore[import-untyped]
    adjusted_rand_score,
    homogeneity_completeness_v_measure,
    rand_score,
)

from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.clustering import NOISE
from meds_openrlhf.results.tables import shown
from meds_openrlhf.runs.log import prompt_codes
from meds_openrlhf.runs.rows import FEATURES, SINGLE, labels_of_feature

Labels = NDArray[np.integer]


@dataclass(frozen=True)
class Agreement:
    """Agreement of labels with a truth: ``pairwise`` is over ``pairs`` of ``rows``, the others are over all rows.

    ``adjusted_rand`` is 0 for random labels and 1 for the truth itself; ``homogeneity`` is 1 if each cluster holds a
    single kind of the truth, ``completeness`` if each kind of the truth lies in a single cluster.
    """

    rows: int
    pairs: int
    pairwise: float
    adjusted_rand: float
    homogeneity: float
    completeness: float


def agreement(labels: Labels, truth: Labels) -> Agreement:
    """Compute the agreement of ``labels`` (n,) with ``truth`` (n,), n > 1.

    Equal labels are the same cluster, including -1: noise is a set, as in the paper. Apply `separate_noise` first to
    treat each row of noise as a separate cluster.
    """
    homogeneity, completeness, _ = homogeneity_completeness_v_measure(truth, labels)
    return Agreement(
        rows=len(labels),
        pairs=math.comb(len(labels), 2),
        pairwise=float(rand_score(truth, labels)),
        adjusted_rand=float(adjusted_rand_score(truth, labels)),
        homogeneity=float(homogeneity),
        completeness=float(completeness),
    )


def agreement_by_prompt(labels: Labels, truth: Labels, prompts: Labels) -> pd.DataFrame:
    """The `Agreement` within each of the ``prompts`` (n,) that has several rows, a line each."""
    places = [np.flatnonzero(prompts == prompt) for prompt in np.unique(prompts)]
    found = [agreement(labels[rows], truth[rows]) for rows in places if len(rows) > 1]
    return pd.DataFrame(found, columns=[entry.name for entry in fields(Agreement)])


def separate_noise(labels: Labels) -> NDArray[np.int64]:
    """The same clusters, with each row of noise as an additional cluster, numbered after them."""
    separate = np.array(labels, dtype=np.int64)
    alone = separate == NOISE
    separate[alone] = separate.max(initial=NOISE) + 1 + np.arange(alone.sum())
    return separate


# ── with a judge's categories, by each of the paper's features ──


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
    wrong: pa.Table, rows: NDArray[np.int64], categories: NDArray[np.int64], own: FeatureTransform, preset: str
) -> tuple[list[VariantAgreement], int]:
    """Agreement of each feature's clusters with the ``categories`` (k,) of ``rows`` (k,), and the number of pairs.

    The features are those of the paper's ablation, and the run's ``own`` if it is none of them. All rows of ``wrong``
    are clustered, as in the memory. Pairs are of one prompt.
    """
    layers = wrong.schema.field("layer_logits").type.list_size
    prompts, found, pairs = prompt_codes(wrong)[rows], [], 0
    for name, transform in features_of(own, layers).items():
        labels = labels_of_feature(wrong, transform, preset)[rows]
        shares: list[float | None] = []
        for reading in (labels, separate_noise(labels)):
            table = agreement_by_prompt(reading, categories, prompts)
            pairs = int(table.pairs.sum())
            shares.append(float(np.average(table.pairwise, weights=table.pairs)) if pairs else None)
        noise = int((labels == NOISE).sum())
        found.append(VariantAgreement(name, len(set(labels.tolist()) - {NOISE}), noise, *shares))
    return found, pairs


def features_of(own: FeatureTransform, layers: int) -> dict[str, FeatureTransform | None]:
    """The features by name, in the paper's notation for a model of so many ``layers``; None is `SINGLE`."""
    features = {_paper_name(variant, layers): feature for variant, feature in FEATURES.items()}
    matrix = own.matrix(layers)
    if not any(feature is not None and np.array_equal(feature.matrix(layers), matrix) for feature in features.values()):
        features[f"{len(matrix)} (own)"] = own
    return features


def name_of(transform: FeatureTransform, own: FeatureTransform, layers: int) -> str | None:
    """The name of ``transform`` in `features_of`, None if it is none of them."""
    found = ((name, feature) for name, feature in features_of(own, layers).items() if feature is not None)
    matrix = transform.matrix(layers)
    return next((name for name, feature in found if np.array_equal(feature.matrix(layers), matrix)), None)


def _paper_name(variant: str, layers: int) -> str:
    """A variant's name in the paper's notation, e.g. 14-diff for the last half's differences of 28 layers."""
    chosen = layers // 2 if variant.startswith("last-half") else layers
    return variant if variant == SINGLE else f"{chosen}{'-diff' if variant.endswith('-diff') else ''}"


def agreement_table(found: Sequence[VariantAgreement]) -> pd.DataFrame:
    """A row per feature."""
    rows = [
        [row.variant, row.clusters, row.noise, *(shown(s and 100 * s) for s in (row.noise_together, row.noise_alone))]
        for row in found
    ]
    header = ["feature", "clusters", "noise", "agreement (%)", "agreement, each noise row a cluster (%)"]
    return pd.DataFrame(rows, columns=header)
