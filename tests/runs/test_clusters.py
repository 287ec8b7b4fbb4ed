"""Clustering a run's wrong rollouts anew, variant by variant."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from meds_openrlhf.runs.clusters import FEATURES, labels_of_feature, own_transform

from meds_openrlhf.config.method import PRESETS
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.clustering import cluster_sets
from meds_openrlhf.memory.snapshot import write_format
from meds_openrlhf.memory.stored import open_memory
from meds_openrlhf.runs.log import prompt_codes
from meds_openrlhf.runs.rows import layer_logits, wrong_rows
from tests.analysis.runs import LAYERS, Rollout, kind, write_run


@pytest.fixture
def rows(tmp_path: Path) -> pa.Table:
    """Two prompts with two kinds of error, a third with one row, interleaved."""
    steps = [
        [
            Rollout("p", "1", logits=kind(1, 0.05, seed)),
            Rollout("q", "3", logits=kind(3, 0.05, 10 + seed)),
            Rollout("p", "2", logits=kind(2, 0.05, 20 + seed)),
            Rollout("q", "4", logits=kind(4, 0.05, 30 + seed)),
            Rollout("p", "9", correct=True),
        ]
        for seed in range(4)
    ]
    steps[2].append(Rollout("lonely", "5", logits=kind(5)))
    return wrong_rows(write_run(tmp_path, steps))


def partition(labels: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in set(labels.tolist())}


@pytest.mark.parametrize("preset", ["paper", "reference", "robust"])
@pytest.mark.parametrize("variant", ["all", "last-half", "all-diff", "last-half-diff"])
def test_each_prompt_is_clustered_by_itself(rows: pa.Table, variant: str, preset: str) -> None:
    labels = labels_of_feature(rows, FEATURES[variant], preset)
    assert labels[rows["prompt"].to_pylist().index("lonely")] == -1
    layers = "all" if variant.startswith("all") else "last-half"
    transform = FeatureTransform(layers, "before" if variant.endswith("diff") else "none")
    found: set[int] = set()
    for prompt in ("p", "q"):
        mine = np.array([one == prompt for one in rows["prompt"].to_pylist()])
        features = transform(layer_logits(rows.filter(pa.array(mine))))
        alone = cluster_sets(features, np.array([0, len(features)]), PRESETS[preset])
        assert alone.max() >= 1  # at least two kinds of error were found
        assert ((labels[mine] == -1) == (alone == -1)).all()
        assert partition(labels[mine]) == partition(alone)
        clusters = set(labels[mine].tolist()) - {-1}
        assert not clusters & found
        found |= clusters
    assert found == set(range(len(found)))


def test_single_is_one_cluster_a_prompt_and_has_no_noise(rows: pa.Table) -> None:
    labels = labels_of_feature(rows, FEATURES["single"], "paper")
    keys = rows["prompt"].to_pylist()
    assert labels.tolist() == [{"p": 0, "q": 1, "lonely": 2}[key] for key in keys]
    assert prompt_codes(rows).tolist() == labels.tolist()


def test_which_layers_a_variant_looks_at(tmp_path: Path) -> None:
    """Kinds that differ in the first half of the layers only, or by one constant over all layers."""
    first, second = np.zeros(LAYERS), np.zeros(LAYERS)
    first[:2], second[2:4] = 9.0, 9.0
    noise = np.random.default_rng(0).normal(size=(8, LAYERS)) * 0.01
    tail = np.array([0, 0, 0, 0, 1.0, 2.0, 3.0, 4.0])
    steps = [[Rollout("p", "1", logits=tail + (first if i % 2 else second) + noise[i]) for i in range(8)]]
    rows = wrong_rows(write_run(tmp_path, steps))
    apart = {frozenset({0, 2, 4, 6}), frozenset({1, 3, 5, 7})}
    found = {variant: partition(labels_of_feature(rows, FEATURES[variant], "robust")) for variant in FEATURES}
    assert found["all"] == found["all-diff"] == apart
    assert found["last-half"] != apart
    assert found["single"] == {frozenset(range(8))}
    # The difference of the fifth layer to the fourth is among the last half of all differences.
    assert found["last-half-diff"] == apart


def test_no_rows_have_no_clusters(rows: pa.Table) -> None:
    assert labels_of_feature(rows.slice(0, 0), FEATURES["last-half"], "paper").tolist() == []


def test_a_runs_own_feature_is_that_of_its_memory(tmp_path: Path) -> None:
    run = write_run(tmp_path, [[Rollout("p", "1", logits=kind(1))]])
    memory = open_memory(run)
    assert own_transform(run) == FeatureTransform()
    write_format(
        memory.paths, replace(memory.format, features={"layers": 3, "difference": "after", "normalize": "none"})
    )
    assert own_transform(run) == FeatureTransform(3, "after", "none")
