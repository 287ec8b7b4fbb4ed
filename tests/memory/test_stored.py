"""The overview: counts, and clusters that are those of the shards themselves."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meds_openrlhf.config.method import PRESETS
from meds_openrlhf.memory.rows import make_rows
from meds_openrlhf.memory.stored import Overview, open_memory, survey
from tests.memory.streams import LAYERS, stream
from tests.memory.written import SETTINGS, WrittenMemory


def test_numbers_are_those_of_the_shards(tmp_path: Path) -> None:
    memory = WrittenMemory(tmp_path, settings=replace(SETTINGS, method=PRESETS["robust"]))
    memory.observe(*stream(4))
    memory.snapshot("global_step4")
    memory.start()
    memory.observe(*stream(8)[4:])
    stats = [shard.stats() for shard in memory.open]
    found = surveyed(tmp_path, 1000, {"meds.memory.preset": "robust"})
    assert found.prompts == sum(one.prompts for one in stats) == 6
    assert found.wrong == sum(one.rows for one in stats)
    assert found.right == 0
    assert found.clusters == sum(one.clusters for one in stats) == len(found.biggest) > 5
    assert found.noise == sum(one.noise for one in stats)
    assert found.bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.arrow"))
    assert (found.steps, found.first_step, found.last_step) == (8, 1, 8)
    assert (found.files, found.snapshots) == (len(list(tmp_path.rglob("*.arrow"))), ["global_step4"])


def test_the_biggest_clusters_come_first_with_their_steps(tmp_path: Path) -> None:
    memory = WrittenMemory(tmp_path)
    kinds = make_rows(range(6), ["p"] * 4 + ["q"] * 2, [False] * 3 + [True] + [False] * 2, _kinds([0, 0, 1, 0, 0, 1]))
    memory.observe(kinds, make_rows([0], ["p"], [True], _kinds([5])), kinds)
    found = surveyed(tmp_path, 2, {"meds.memory.preset": "robust", "meds.features.layers": "all"})
    assert (found.wrong, found.right, found.prompts) == (10, 3, 2)
    biggest = found.biggest[0]
    assert (biggest.prompt, biggest.correct, biggest.size) == ("p", False, 4)
    assert biggest.share == pytest.approx(4 / 6)
    assert (biggest.first_step, biggest.last_step) == (1, 3)
    assert [one.size for one in found.biggest] == [4, 2]


def test_an_empty_memory_has_an_overview(tmp_path: Path) -> None:
    WrittenMemory(tmp_path)
    found = surveyed(tmp_path, 10, {})
    assert (found.prompts, found.clusters, found.first_step, found.biggest) == (0, 0, None, [])


def surveyed(folder: Path, top: int, changed: dict[str, object]) -> Overview:
    """The overview of the memory in ``folder`` with these settings."""
    memory = open_memory(folder)
    return survey(memory, memory.settings(changed), top)


def _kinds(kinds: list[int]) -> np.ndarray:
    """Logits of errors of these kinds, no two kinds alike."""
    return np.eye(8, LAYERS, dtype=np.float32)[kinds] * 5
