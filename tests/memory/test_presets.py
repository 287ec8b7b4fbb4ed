"""The presets' settings, one by one, and how single ones are changed."""

import pytest

from meds_openrlhf.memory.assignment import Assignment
from meds_openrlhf.memory.clustering import Clustering
from meds_openrlhf.memory.presets import PRESETS, Method, make_method


def test_what_the_presets_are() -> None:
    knn = Assignment(method="knn", neighbors=3, metric="cosine", ties="nearest")
    assert PRESETS["paper"] == Method(Clustering(min_cluster_size=2, min_samples=1), knn, noise="none")
    assert PRESETS["reference"] == Method(
        Clustering(min_cluster_size=2, min_samples=1, exact=False),
        Assignment(method="knn", neighbors=3, metric="cosine", ties="smallest"),
        noise="cluster",
    )
    robust = Clustering(min_cluster_size=2, min_samples=1, allow_single_cluster=True, selection_epsilon="auto")
    assert PRESETS["robust"] == Method(robust, knn, noise="none")
    assert all(method.window_rows is None and method.window_visits is None for method in PRESETS.values())


@pytest.mark.parametrize("preset", ["paper", "reference", "robust"])
def test_nothing_given_leaves_the_preset(preset: str) -> None:
    assert make_method(preset) == PRESETS[preset]
    assert make_method(preset, neighbors=None, min_samples=None, noise=None, window_rows=None) == PRESETS[preset]


def test_every_override_reaches_its_field() -> None:
    method = make_method(
        "robust", min_cluster_size=4, min_samples=2, metric="manhattan", allow_single_cluster=False,
        selection_epsilon=0.0, exact=False, assignment="joint", neighbors=5, neighbor_metric="euclidean",
        ties="smallest", noise="cluster", window_rows=50, window_visits=3,
    )  # fmt: skip
    clustering = Clustering(
        min_cluster_size=4, min_samples=2, metric="manhattan", allow_single_cluster=False, selection_epsilon=0.0,
        exact=False,
    )  # fmt: skip
    assignment = Assignment(method="joint", neighbors=5, metric="euclidean", ties="smallest")
    assert method == Method(clustering, assignment, noise="cluster", window_rows=50, window_visits=3)


def test_names_that_there_are_none_of_are_refused() -> None:
    with pytest.raises(ValueError, match="preset: 'papers' is not one of paper, reference, robust"):
        make_method("papers")
    with pytest.raises(ValueError, match="neighbours: is no setting of a preset"):
        make_method("paper", neighbours=3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "nn"}, "method: 'nn' is neither knn nor joint"),
        ({"metric": "dot"}, "metric: 'dot' is neither cosine nor euclidean"),
        ({"ties": "first"}, "ties: 'first' is neither nearest nor smallest"),
        ({"neighbors": 0}, "neighbors: 0 is below 1"),
    ],
)
def test_an_assignment_that_there_is_none_of_is_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Assignment(**wrong)
