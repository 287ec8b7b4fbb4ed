"""What is read from a stored memory: counts, clusters that are those of the shards themselves, and its damage.

Verification is silent about what is sound, also while it grows; every kind of damage is a line that names the file.
"""

import json
import re
import shutil
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from meds_openrlhf.config import ConfigError, MedsSettings
from meds_openrlhf.config.method import PRESETS
from meds_openrlhf.config.schema import FeatureSettings
from meds_openrlhf.features.kind import features_of_rows
from meds_openrlhf.memory.log import StoredStep, read_steps, write_steps
from meds_openrlhf.memory.rows import Sharding, log_schema, make_rows
from meds_openrlhf.memory.shard import ShardSettings
from meds_openrlhf.memory.snapshot import MemoryFormat
from meds_openrlhf.memory.stored import StoredMemory, Verification, open_memory, settings_with, survey, verify_memory
from meds_openrlhf.paths import MemoryPaths, RunPaths
from tests.memory.written import LAYERS, SETTINGS, WrittenMemory, files_of, stream


def test_numbers_are_those_of_the_shards(tmp_path: Path) -> None:
    memory = WrittenMemory(tmp_path, settings=replace(SETTINGS, method=PRESETS["robust"]))
    memory.observe(*stream(4))
    memory.snapshot()
    memory.start()
    memory.observe(*stream(8)[4:])
    stats = [shard.stats() for shard in memory.open]
    found = survey(open_memory(tmp_path), settings_with({"meds.memory.preset": "robust"}), top=1000)
    assert found.prompts == sum(shard.prompts for shard in stats) == 6
    assert (found.wrong, found.right) == (sum(shard.rows for shard in stats), 0)
    assert found.clusters == sum(shard.clusters for shard in stats) == len(found.biggest) > 5
    assert found.noise == sum(shard.noise for shard in stats)
    assert (found.steps, found.first_step, found.last_step) == (8, 1, 8)
    files = list(tmp_path.rglob("*.arrow"))
    assert (found.files, found.bytes) == (len(files), sum(path.stat().st_size for path in files))
    assert found.snapshots == ["global_step4"]


def test_the_biggest_clusters_come_first_with_their_steps(tmp_path: Path) -> None:
    memory = WrittenMemory(tmp_path, settings=ShardSettings(4))
    correct = [False] * 3 + [True] + [False] * 2
    one, other = [9.0, 0, 0, 0], [0, 0, 0, 9.0]
    kinds = make_rows(range(6), ["p"] * 4 + ["q"] * 2, correct, np.float32([one, one, other, one, one, other]))
    memory.observe(kinds, make_rows([0], ["p"], [True], np.float32([[0, 9, 9, 0]])), kinds)
    settings = settings_with({"meds.memory.preset": "robust", "meds.features.layers": "all"})
    found = survey(open_memory(tmp_path), settings, top=2)
    assert (found.wrong, found.right, found.prompts) == (10, 3, 2)
    assert astuple(found.biggest[0]) == ("p", False, 4, pytest.approx(4 / 6), 1, 3)
    assert [cluster.size for cluster in found.biggest] == [4, 2]
    assert (found.first_step, found.last_step) == (1, 3)


def test_a_memory_is_read_as_what_it_holds() -> None:
    formats = (
        MemoryFormat(1, 2, {"rows": "final answers"}),
        MemoryFormat(1, 28, {}, {"layers": "all", "difference": "after"}),
    )
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
    with pytest.raises(ConfigError, match=r"holds the memory of another model or feature \(rows final answers\), not"):
        formats[0].require_match(formats[1], Path("here"))


# ── verification ──


def verified(root: Path) -> Verification:
    return verify_memory(open_memory(root))


def damage(root: Path) -> list[str]:
    return [line.removeprefix(f"{root}/") for line in verified(root).damage]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two shards with the steps 1 to 2, 3 to 4, 5 and 6; three snapshots; the run is over."""
    memory = WrittenMemory(tmp_path / "memory")
    for step, rows in enumerate(stream(6), 1):
        memory.observe(rows)
        if step in (2, 4):
            memory.snapshot()
    memory.stop()
    return memory.root


def test_a_run_that_goes_on_is_sound_at_any_moment(tmp_path: Path) -> None:
    memory = WrittenMemory(tmp_path)
    assert verified(tmp_path).damage == []
    found = survey(open_memory(tmp_path), settings_with({}))
    assert (found.prompts, found.clusters, found.first_step, found.biggest) == (0, 0, None, [])
    for rows in stream(4):
        memory.observe(rows)
        assert verified(tmp_path).damage == []
        memory.snapshot()
        assert verified(tmp_path).damage == []


def test_a_manifest_that_is_wrong_or_whose_files_are_missing_is_found(root: Path) -> None:
    path = MemoryPaths(root).snapshot("global_step4")
    content = json.loads(path.read_text())
    for changes, message in (
        ({"rows": {"shard-0000": 1000}}, "expects 1000 rows in shard-0000, but [0-9]+ are present and undamaged"),
        ({"rows": {"shard-0009": 3}}, "expects 3 rows in shard-0009, but 0 are present and undamaged"),
        ({"step": 3}, "expects [0-9]+ rows in shard-000"),
        ({"format": {**content["format"], "model": {}}}, "was made with a different model than format.json"),
        ({"format": 7}, ""),
    ):
        path.write_text(json.dumps({**content, **changes}))
        assert re.match(rf"snapshots/global_step4\.json: {message}", damage(root)[0])
        assert all("global_step4.json" in text for text in damage(root))
    path.write_text(json.dumps(content))
    files_of(root, shard=1)[1].unlink()
    assert {text.split(":")[0] for text in damage(root)} == {"snapshots/global_step4.json"}


def test_snapshots_undone_by_a_restart_are_not_checked(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    memory = WrittenMemory(run.memory.root)
    batches = stream(5)
    memory.observe(*batches[:2])
    memory.snapshot()
    memory.observe(batches[2])
    memory.snapshot()
    memory.restore("global_step2")  # step 3's checkpoint was never saved to the end
    memory.observe(batches[3].slice(1))
    run.config.write_text("")
    run.complete.mkdir(parents=True)
    (run.complete / "global_step2").write_text("{}")
    assert verified(tmp_path).damage == []
    (run.complete / "global_step3").write_text("{}")
    damage = verified(tmp_path).damage
    assert damage
    assert all("global_step3.json" in line for line in damage)


def test_rows_that_are_there_twice_or_in_another_shard_are_found(root: Path) -> None:
    """The last step once more, under the name of the next; then that file in the folder of the other shard."""
    assert verified(root) == Verification(rows=sum(map(len, stream(6))), snapshots=2, damage=[], visits=30)
    assert verified(root) == verified(root.parent)  # a memory given by its own folder or by its run's is the same
    last = files_of(root)[-1]
    shutil.copyfile(last, root / "shard-0000" / "000007.arrow")
    ((_, batch, visits),) = read_steps(last, log_schema(LAYERS))
    assert damage(root)[0] == "shard-0000/000007.arrow: does not hold the steps of its name; restore it from a backup"
    again = batch.set_column(0, batch.schema.field("step"), pa.array([7] * len(batch), pa.int32()))
    for folder in ("shard-0000", "shard-0001"):
        write_steps(root / folder, [StoredStep(7, again, visits)], Sharding(0, 2))
    assert damage(root) == [
        "shard-0001: step 7 has rows that belong to another shard",
        f"{root}: {len(batch)} rows are stored twice",
    ]


def test_what_is_no_memory_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"RUN=.*none: does not exist. Name a run's folder"):
        open_memory(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"holds no memory\. Name a run's folder"):
        open_memory(root / "snapshots")
