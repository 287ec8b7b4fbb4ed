"""What the configuration takes is what the memory goes by."""

import itertools

import pytest

from meds_openrlhf.config import ConfigError, FeatureSettings, MemorySettings
from meds_openrlhf.memory.presets import PRESETS, Method, make_method
from meds_openrlhf.memory.settings import features_of_rows, method_of, settings_of_format, transform_of_rows
from meds_openrlhf.memory.snapshot import ANSWERS, MemoryFormat


@pytest.mark.parametrize("preset", ["paper", "reference", "robust"])
def test_the_memorys_settings_become_its_method(preset: str) -> None:
    assert method_of(MemorySettings(preset=preset)) == PRESETS[preset]
    single = {
        "min_cluster_size": 3, "min_samples": 2, "metric": "manhattan", "allow_single_cluster": False,
        "selection_epsilon": 0.5, "assignment": "joint", "neighbors": 5, "neighbor_metric": "euclidean",
        "ties": "smallest", "noise": "cluster", "window_rows": 40, "window_visits": 3,
    }  # fmt: skip
    assert method_of(MemorySettings(preset=preset, **single)) == make_method(preset, **single)


def test_what_the_configuration_takes_the_memory_takes() -> None:
    """The configuration loads nothing of the memory, so it repeats what goes with what."""
    presets, metrics, epsilons = ("paper", "reference", "robust"), ("euclidean", "manhattan", "cosine"), ("auto", 0.0)
    taken = 0
    for preset, metric, epsilon in itertools.product(presets, (None, *metrics), (None, *epsilons)):
        clustering = {"metric": metric, "selection_epsilon": epsilon}
        try:
            settings = MemorySettings(preset=preset, **clustering)
        except ConfigError:
            with pytest.raises(ValueError, match=r"^(metric|selection_epsilon): "):
                make_method(preset, **clustering)
        else:
            assert isinstance(method_of(settings), Method)
            taken += 1
    assert taken == 29  # of 36
    for name, values in {
        "assignment": ("knn", "joint"), "neighbor_metric": ("cosine", "euclidean"), "ties": ("nearest", "smallest"),
    }.items():  # fmt: skip
        for value in values:
            assert isinstance(method_of(MemorySettings(**{name: value})), Method)


def test_a_memory_without_its_run_says_how_its_rows_are_compared_and_settings_may_be_changed() -> None:
    held = MemoryFormat(1, 28, {"architecture": "Qwen2"}, {"layers": "all", "difference": "after"})
    plain, changed = settings_of_format(held), settings_of_format(held, {"meds.memory.preset": "robust"})
    assert (plain.features.layers, plain.features.difference, plain.memory.preset) == ("all", "after", "paper")
    assert (changed.features.layers, changed.memory.preset) == ("all", "robust")
    answers = settings_of_format(MemoryFormat(1, 2, dict(ANSWERS)))
    assert answers.memory.preset == "answers"
    assert transform_of_rows(answers, MemoryFormat(1, 2, dict(ANSWERS))).dimensions(2) == 2


def test_answers_are_compared_as_they_are() -> None:
    features = FeatureSettings(layers="last-half", difference="after")
    plain = FeatureSettings(layers="all", difference="none", normalize="none")
    assert features_of_rows(features, MemorySettings(preset="answers")) == plain
    assert features_of_rows(features, MemorySettings()) == features
