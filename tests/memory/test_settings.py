"""What the configuration takes is what the memory goes by."""

from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError, MedsSettings, MemorySettings
from meds_openrlhf.config.method import PRESETS, make_method
from meds_openrlhf.config.schema import FeatureSettings
from meds_openrlhf.features.settings import features_of_rows
from meds_openrlhf.memory.snapshot import ANSWERS, MemoryFormat
from meds_openrlhf.memory.stored import StoredMemory
from meds_openrlhf.paths import MemoryPaths


@pytest.mark.parametrize("preset", ["paper", "reference", "robust"])
def test_the_memorys_settings_become_its_method(preset: str) -> None:
    assert MemorySettings(preset=preset).method == PRESETS[preset]
    single = {"min_cluster_size": 3, "assignment": "joint", "noise": "cluster"}
    assert MemorySettings(preset=preset, **single).method == make_method(preset, **single)


@pytest.mark.parametrize(("name", "value"), [("min_cluster_size", 1), ("assignment", "nn"), ("noise", "loud")])
def test_what_the_method_refuses_the_configuration_refuses(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"meds.memory.{name}={value}: must be "):
        MemorySettings(**{name: value})
    with pytest.raises(ConfigError, match=rf"meds.memory.{name}=.* does not apply to the preset"):
        MedsSettings(run_dir=".", memory=MemorySettings(**{name: getattr(PRESETS["paper"], name)}, preset="answers"))


def test_a_memory_without_its_run_says_how_its_rows_are_compared_and_settings_may_be_changed() -> None:
    held = stored(MemoryFormat(1, 28, {"architecture": "Qwen2"}, {"layers": "all", "difference": "after"}))
    plain, changed = held.settings(), held.settings({"meds.memory.preset": "robust"})
    assert (plain.features.layers, plain.features.difference, plain.memory.preset) == ("all", "after", "paper")
    assert (changed.features.layers, changed.memory.preset) == ("all", "robust")
    answers = stored(MemoryFormat(1, 2, dict(ANSWERS)))
    assert answers.settings().memory.preset == "answers"
    assert answers.transform(answers.settings()).dimensions(2) == 2


def stored(memory_format: MemoryFormat) -> StoredMemory:
    return StoredMemory(MemoryPaths(Path("here")), memory_format)


def test_answers_are_compared_as_they_are() -> None:
    features = FeatureSettings(layers="last-half", difference="after")
    plain = FeatureSettings(layers="all", difference="none", normalize="none")
    assert features_of_rows(features, MemorySettings(preset="answers")) == plain
    assert features_of_rows(features, MemorySettings()) == features
