"""The rollout log and the memory's logits in one table, and their clusters, variant by variant."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.method import PRESETS
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.clustering import cluster_sets
from meds_openrlhf.memory.rows import layer_logits_of
from meds_openrlhf.memory.snapshot import read_format, write_format
from meds_openrlhf.memory.stored import open_memory
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.features import FEATURES, labels_of_feature, own_transform, wrong_rows
from meds_openrlhf.rollouts.log import read_step, write_rollouts
from meds_openrlhf.rollouts.run import logged_rollouts
from tests.analysis.runs import LAYERS, Rollout, kind, write_run

STEPS = [
    [Rollout("p", "1", logits=[1.0] * LAYERS), Rollout("q", "7", correct=True), Rollout("q", None)],
    [Rollout("q", "2", logits=[2.0] * LAYERS), Rollout("p", "3", correct=True, logits=[3.0] * LAYERS, text=None)],
    [Rollout("p", "1", logits=[4.0] * LAYERS)],
]


def test_rows_are_the_wrong_ones_of_the_log_that_the_memory_has(tmp_path: Path) -> None:
    rows = wrong_rows(write_run(tmp_path, STEPS), ("prompt_text", "response", "answer"))
    assert list(zip(rows["step"].to_pylist(), rows["sample"].to_pylist())) == [(1, 0), (2, 0), (3, 0)]
    assert rows["prompt"].to_pylist() == ["p", "q", "p"]
    assert rows["answer"].to_pylist() == ["1", "2", "1"]
    assert rows["response"].null_count == 0
    assert set(rows["prompt_text"].to_pylist()) == {"Work out p.", "Work out q."}
    assert layer_logits_of(rows).tolist() == [[1.0] * LAYERS, [2.0] * LAYERS, [4.0] * LAYERS]
    assert layer_logits_of(rows).dtype == np.float32


def test_rows_of_the_memory_that_are_not_in_the_log_are_left_aside(tmp_path: Path) -> None:
    run = write_run(tmp_path, STEPS)
    logged = read_step(RunPaths(run), 2)
    assert logged is not None
    write_rollouts(RunPaths(run), logged.slice(1))
    assert layer_logits_of(wrong_rows(run))[:, 0].tolist() == [1.0, 4.0]
    RunPaths(run).rollouts(1).unlink()
    assert layer_logits_of(wrong_rows(run))[:, 0].tolist() == [4.0]


def test_a_memory_of_other_rollouts_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", STEPS)
    other = write_run(tmp_path / "other", [[replace(STEPS[0][0], prompt="another")], *STEPS[1:]])
    RunPaths(run).rollouts(1).write_bytes(RunPaths(other).rollouts(1).read_bytes())
    with pytest.raises(ConfigError, match=r"a memory of other rollouts \(step 1, sample 0\)"):
        wrong_rows(run)


def test_a_run_without_log_or_logits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        logged_rollouts(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"has no rollout log\. Train with --meds\.tracking\.rollouts all"):
        wrong_rows(tmp_path)
    run = write_run(tmp_path / "answers", STEPS)
    held = read_format(RunPaths(run).memory)
    assert held is not None
    for model, words in (
        ({"rows": "final answers"}, "final answers"),
        ({**held.model, "function": "0123abcd"}, "values of a function of the user's"),
    ):
        write_format(RunPaths(run).memory, replace(held, model=model))
        with pytest.raises(ConfigError, match=f"remembers {words}, not layer logits. Name another run"):
            wrong_rows(run)
    assert len(logged_rollouts(run)) == 6


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
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
    return wrong_rows(write_run(tmp_path_factory.mktemp("rows"), steps))


def partition(labels: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in set(labels.tolist())}


@pytest.mark.parametrize("preset", ["paper", "reference", "robust"])
@pytest.mark.parametrize("variant", ["all", "last-half", "all-diff", "last-half-diff"])
def test_each_prompt_is_clustered_by_itself(rows: pa.Table, variant: str, preset: str) -> None:
    labels, prompts = labels_of_feature(rows, FEATURES[variant], preset), np.array(rows["prompt"].to_pylist())
    assert labels[prompts == "lonely"] == [-1]
    found: list[int] = []
    for prompt in ("p", "q"):
        mine, features = prompts == prompt, FEATURES[variant](layer_logits_of(rows))
        alone = cluster_sets(features[mine], np.array([0, mine.sum()]), PRESETS[preset])
        assert alone.max() >= 1  # at least two kinds of error were found
        assert ((labels[mine] == -1) == (alone == -1)).all()
        assert partition(labels[mine]) == partition(alone)
        found += set(labels[mine].tolist()) - {-1}
    assert sorted(found) == [*range(len(found))]


def test_single_is_one_cluster_a_prompt_and_has_no_noise(rows: pa.Table) -> None:
    labels = labels_of_feature(rows, FEATURES["single"], "paper")
    assert labels.tolist() == [{"p": 0, "q": 1, "lonely": 2}[key] for key in rows["prompt"].to_pylist()]


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


def test_a_runs_own_feature_is_that_of_its_memory(tmp_path: Path) -> None:
    run = write_run(tmp_path, [[Rollout("p", "1", logits=kind(1))]])
    memory = open_memory(run)
    assert own_transform(run) == FeatureTransform()
    other = {"layers": 3, "difference": "after", "normalize": "none"}
    write_format(memory.paths, replace(memory.format, features=other))
    assert own_transform(run) == FeatureTransform(3, "after", "none")
