"""A memory of final answers, and how a stored memory says whether it is one."""

from pathlib import Path

import numpy as np
import pytest

from meds_openrlhf.config import ConfigError, MedsSettings
from meds_openrlhf.config.method import PRESETS
from meds_openrlhf.config.schema import FeatureSettings
from meds_openrlhf.features.settings import features_of_rows
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.rows import Sharding, make_rows
from meds_openrlhf.memory.shard import MemoryShard, ShardSettings
from meds_openrlhf.memory.snapshot import ANSWERS, MemoryFormat
from meds_openrlhf.memory.stored import StoredMemory
from meds_openrlhf.paths import MemoryPaths


def test_a_shard_of_answers_counts_how_often_one_was_given_before(tmp_path: Path) -> None:
    transform = FeatureTransform("all", "none", "none")
    settings = ShardSettings(layers=2, transform=transform, method=PRESETS["answers"])
    shard = MemoryShard(MemoryPaths(tmp_path), Sharding(0, 1), settings)
    seven, eight = [7.0, 7.0], [8.0, 8.0]
    sizes = []
    for step, answers in enumerate([[seven, seven, eight], [seven, eight, [9.0, 9.0]], [seven, seven]], start=1):
        count = len(answers)
        rows = make_rows(list(range(count)), ["p"] * count, [False] * count, np.array(answers, np.float32))
        answer = shard.observe(step, rows)
        shard.recluster()
        sizes.append(answer.size.tolist())
    assert sizes == [[0, 0, 0], [2, 1, 0], [3, 3]]


def test_a_stored_memory_is_read_as_what_it_holds() -> None:
    formats = MemoryFormat(1, 2, dict(ANSWERS)), MemoryFormat(1, 28, {}, {"layers": "all", "difference": "after"})
    of_answers, of_logits = (StoredMemory(MemoryPaths(Path("here")), held) for held in formats)
    answers, paper = of_answers.settings(), of_logits.settings()
    assert answers.memory.preset == "answers"
    plain = FeatureSettings(layers="all", difference="none", normalize="none")  # answers are compared as they are
    assert features_of_rows(paper.features, answers.memory) == plain
    assert features_of_rows(paper.features, paper.memory) == paper.features
    assert (paper.memory.preset, paper.features.layers, paper.features.difference) == ("paper", "all", "after")
    changed = of_logits.settings({"meds.memory.preset": "robust"})
    assert (changed.memory.preset, changed.features.layers) == ("robust", "all")
    rows = np.array([[7.0, 3.0], [8.0, 3.0]])
    assert np.array_equal(of_answers.transform(answers)(rows), rows)
    assert of_logits.transform(MedsSettings(run_dir="run")).matrix(28).shape == (14, 28)
    with pytest.raises(ConfigError, match=r"meds.memory.preset=paper: this memory holds final"):
        of_answers.transform(paper)
    with pytest.raises(ConfigError, match=r"meds.memory.preset=answers: this memory holds"):
        of_logits.transform(answers)
    with pytest.raises(ConfigError, match=r"meds.memory.preset=of logits: the rows of the memory in here"):
        formats[0].require_match(formats[1], Path("here"))
