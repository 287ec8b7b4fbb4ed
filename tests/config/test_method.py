"""The presets' settings, one by one, and how single ones are changed."""

import pytest

from meds_openrlhf.config.method import OVERRIDES, PRESETS, Method, make_method


def test_what_the_presets_are() -> None:
    paper = {"min_cluster_size": 2, "assignment": "knn", "noise": "none", "algorithm": "hdbscan", "ties": "nearest"}
    assert {
        "paper": Method(**paper),
        "reference": Method(**{**paper, "algorithm": "library", "ties": "smallest", "noise": "cluster"}),
        "robust": Method(**{**paper, "algorithm": "robust"}),
        "answers": Method(**{**paper, "algorithm": "equal"}),
    } == PRESETS


def test_every_override_reaches_its_field() -> None:
    changes = {"min_cluster_size": 4, "assignment": "joint", "noise": "cluster"}
    assert set(changes) == set(OVERRIDES)
    assert make_method("robust", **changes) == Method(algorithm="robust", **changes)
    for preset, method in PRESETS.items():
        assert make_method(preset) == make_method(preset, **dict.fromkeys(OVERRIDES)) == method
    with pytest.raises(ValueError, match='preset=papers: must be "paper", "reference", "robust" or "answers"'):
        make_method("papers")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"min_cluster_size": 1}, "min_cluster_size=1: must be an integer that is at least 2"),
        ({"algorithm": "kmeans"}, 'algorithm=kmeans: must be "hdbscan", "robust", "library" or "equal"'),
        ({"assignment": "nn"}, 'assignment=nn: must be "knn" or "joint"'),
        ({"ties": "first"}, 'ties=first: must be "nearest" or "smallest"'),
        ({"noise": "loud"}, 'noise=loud: must be "none" or "cluster"'),
    ],
)
def test_a_value_that_does_not_exist_is_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Method(**wrong)
