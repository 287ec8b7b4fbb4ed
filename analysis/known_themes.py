"""Do themes find the kinds of mistakes across prompts? On the demo's task the kinds are known.

Groups the clusters of each run's prompts in five ways and compares the theme of each wrong rollout with the mistake
that explains it, by the adjusted Rand index: 0 for chance, 1 for equal. A theme is made of whole clusters, so "the
clusters' most frequent mistake" is the best that any way can reach.

    python -m analysis.known_themes runs/demo-20261121-120000 runs/other
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score  # type: ignore[import-untyped]

from analysis.command_line import Command, Finding
from analysis.known_mistakes import wrong_and_explained
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.options import folders
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.report.atlas import Atlas, read_atlas
from meds_openrlhf.report.themes import texts_of
from meds_openrlhf.runs.settings import names_of
from meds_openrlhf.stats.presentation import markdown
from meds_openrlhf.themes.grouping import MOST_THEMES, ClusterTexts, departure_vectors, joined, phrase_vectors
from meds_openrlhf.themes.words import words_in

Vectors = NDArray[np.float32]


def analyze(runs: Annotated[Sequence[Path], folders("folders of runs of the arithmetic task")]) -> Finding:
    """Score each way on each run."""
    scores = {name: scores_of(run) for run, name in zip(runs, names_of(runs))}
    table = pd.DataFrame(scores).assign(mean=lambda frame: frame.mean(axis=1)).rename_axis("themes by").reset_index()
    shown = table.map(lambda value: value if isinstance(value, str) else f"{value:.3f}")
    return Finding(markdown(shown), {"adjusted_rand": scores})


def scores_of(run: Path) -> dict[str, float]:
    """The adjusted Rand index of each way. Raises ConfigError for a run without explained errors in clusters."""
    (wrong, explanations), atlas = wrong_and_explained(run), read_atlas(RunPaths(run))
    assert atlas is not None  # it has wrong rollouts
    _, (texts,) = texts_of([atlas], [np.arange(len(atlas.clusters))])
    with_text = np.flatnonzero([bool(cluster.departures) for cluster in texts])
    cluster = pd.Index(with_text).get_indexer(atlas.cluster)  # (n,), NONE for noise and clusters without a text
    logged = atlas.rollouts.find(wrong["step"].to_numpy(), wrong["sample"].to_numpy())
    kinds = pd.Series([case.kind or "" for case in explanations], logged)  # "": none or several may explain it
    kind = kinds.reindex(atlas.in_log, fill_value="").to_numpy(str)
    compared = (cluster >= 0) & (kind != "") & ~atlas.rows.correct
    if not compared.any():
        raise ConfigError("RUN", str(run), "has no clustered rollout that a mistake explains. Name a longer run.")
    cluster, kind = cluster[compared], kind[compared]
    grouped = {name: joined(vectors, MOST_THEMES) for name, vectors in _ways(atlas, texts, with_text).items()}
    most_frequent = pd.Series(kind).groupby(cluster).agg(lambda kinds: kinds.mode()[0])
    themes = {
        "baseline: one theme for all clusters": np.zeros(len(cluster), int),
        "baseline: one theme per cluster": cluster,
        **{name: theme[cluster] for name, theme in grouped.items()},
        "the clusters' most frequent mistake": most_frequent[cluster].to_numpy(),
    }
    return {name: float(adjusted_rand_score(kind, theme)) for name, theme in themes.items()}


def _ways(atlas: Atlas, texts: list[ClusterTexts], with_text: NDArray[np.int64]) -> dict[str, Vectors]:
    """Unit vectors (k, d) of the clusters ``with_text`` (k,), in five ways."""
    texts = [texts[cluster] for cluster in with_text.tolist()]
    words = [
        [[*map(cluster.of.problem.role, words_in(response.text))] for response in cluster.responses]
        for cluster in texts
    ]
    around = [[departure.words for departure in cluster.departures] for cluster in texts]
    text, fingerprints = phrase_vectors(words), _fingerprints(atlas)[with_text]
    return {
        "text of the responses": text,
        "fingerprints, standardized within prompts": fingerprints,
        "both": np.concatenate([text, fingerprints], axis=1) / np.sqrt(2, dtype=np.float32),
        "words where responses depart": phrase_vectors(around),
        "words, calculation and how it relates (the default)": departure_vectors(
            [cluster.departures for cluster in texts]
        ),
    }


def _fingerprints(atlas: Atlas) -> Vectors:
    """The mean feature of each cluster, after the features of each prompt's rows got mean 0 and deviation 1."""
    assert atlas.rows.logits is not None
    means = []
    for prompt, clusters in atlas.clusters.groupby("prompt"):
        features = atlas.rows.logits(int(prompt)).features
        standard = (features - features.mean(0)) / np.maximum(features.std(0), 1e-6)
        means += [standard[atlas.is_member(cluster)].mean(0) for cluster in clusters.index.tolist()]
    vectors = np.array(means, np.float32)
    unit: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit


main = Command("known_themes", __doc__, analyze, draws=False)

if __name__ == "__main__":
    sys.exit(main())
