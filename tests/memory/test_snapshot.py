"""Manifests and formats: round trips, and what is refused before it can lead anywhere.

A memory with another number of shards: the same answers, and nothing is lost on the way.
"""

import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.memory import snapshot as snapshot_module
from meds_openrlhf.memory.errors import MemoryBusyError, MemoryCorruptionError
from meds_openrlhf.memory.log import LogState
from meds_openrlhf.memory.snapshot import (
    MemoryFormat,
    Snapshot,
    commit_snapshot,
    read_format,
    read_snapshot,
    rewrite_memory,
    write_format,
)
from meds_openrlhf.memory.stored import open_memory
from meds_openrlhf.paths import MemoryPaths
from tests.failing import failing
from tests.memory.written import WrittenMemory, answered_by_one, files_of, stream

FEATURES = {"layers": "last-half", "difference": "none"}
FORMAT = MemoryFormat(2, 8, {"architecture": "Qwen2ForCausalLM", "layers": 8}, FEATURES)
SNAPSHOT = Snapshot(FORMAT, LogState(5, {"shard-0000": 0, "shard-0001": 10}))


def test_round_trip(tmp_path: Path) -> None:
    paths = MemoryPaths(tmp_path)
    commit_snapshot(paths, "global_step5", SNAPSHOT)
    assert read_snapshot(paths.snapshot("global_step5")) == SNAPSHOT
    assert [path.name for path in paths.snapshots.iterdir()] == ["global_step5.json"]
    with pytest.raises(MemoryCorruptionError, match=r"global_step9\.json: is missing"):
        read_snapshot(paths.snapshot("global_step9"))
    for name in ("../evil", "a/b", "", ".hidden"):
        with pytest.raises(ValueError, match="snapshot name"):
            paths.snapshot(name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *[({"step": step}, "is not a snapshot's manifest") for step in ("5", 5.0, None)],
        *[({"rows": rows}, "is not a snapshot's manifest") for rows in (None, [], {"shard-0000": "7"})],
        *[(text, "") for text in ("", "[]", "{}", "\x00\xff")],
        ({"format": {"a": 1}}, "is not a memory format"),
    ],
)
def test_a_manifest_that_is_wrong_is_named(tmp_path: Path, changes: dict | str, message: str) -> None:
    paths = MemoryPaths(tmp_path)
    commit_snapshot(paths, "s", SNAPSHOT)
    content = json.loads(paths.snapshot("s").read_text())
    paths.snapshot("s").write_text(changes if isinstance(changes, str) else json.dumps({**content, **changes}))
    with pytest.raises(MemoryCorruptionError, match=rf"s\.json: {message}"):
        read_snapshot(paths.snapshot("s"))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"format_version": 1, "old_field": 3}, ConfigError, "has a memory of format 1, but this version reads 3"),
        ({"features": 5}, MemoryCorruptionError, "wrong type"),
        ({"shards": "7"}, MemoryCorruptionError, "wrong type"),
        ({"step_offset": 7}, ConfigError, "with the version that wrote it"),
        ({"more": 1}, MemoryCorruptionError, "is not a memory format"),
    ],
)
def test_a_format_that_is_wrong_is_named(tmp_path: Path, changes: dict, error: type, message: str) -> None:
    paths = MemoryPaths(tmp_path)
    write_format(paths, FORMAT)
    paths.format.write_text(json.dumps({**json.loads(paths.format.read_text()), **changes}))
    with pytest.raises(error, match=rf"format\.json.*{message}"):
        read_format(paths)


def test_removed_fields_at_their_defaults_are_as_if_they_were_absent(tmp_path: Path) -> None:
    paths = MemoryPaths(tmp_path)
    openings = {"answer_openings": ["\\boxed{"]}
    old = {**asdict(FORMAT), "features": {**FEATURES, **openings}, "step_offset": 0}
    paths.format.write_text(json.dumps(old))
    assert read_format(paths) == FORMAT
    commit_snapshot(paths, "s", SNAPSHOT)
    content = json.loads(paths.snapshot("s").read_text())
    paths.snapshot("s").write_text(json.dumps({**content, "format": old}))
    assert read_snapshot(paths.snapshot("s")) == SNAPSHOT
    paths.format.write_text(json.dumps({**old, "step_offset": 50}))
    with pytest.raises(
        ConfigError, match=r"^step_offset=50: was removed, and only 0 is read\. Read .*/format\.json with"
    ):
        read_format(paths)
    paths.format.write_text(json.dumps({**old, "features": {**FEATURES, "answer_openings": ["#### "]}}))
    with pytest.raises(ConfigError, match=r"^features.answer_openings=\['#### '\]: was removed, and only .*boxed"):
        read_format(paths)


def test_the_format_of_another_model_or_variant_of_the_features_is_refused(tmp_path: Path) -> None:
    paths = MemoryPaths(tmp_path)
    assert read_format(paths) is None
    write_format(paths, FORMAT)
    held = read_format(paths)
    assert held == FORMAT
    held.require_match(replace(FORMAT, shards=3), tmp_path)  # prompts may be divided anew
    other = replace(FORMAT, layers=4, model={"architecture": "LlamaForCausalLM", "layers": 4})
    with pytest.raises(ConfigError, match=r"meds.run_dir=.* another model .*Qwen2ForCausalLM.*LlamaForCausalLM"):
        held.require_match(other, tmp_path)
    for name, value in (("layers", "all"), ("difference", "before")):
        with pytest.raises(ConfigError, match=rf"meds.features.{name}=.*: the memory in .* was made with"):
            held.require_match(replace(FORMAT, features={**FEATURES, name: value}), tmp_path)
    # A setting of an earlier version: what was off does not matter.
    replace(held, features={**FEATURES, "logit_lens": False}).require_match(held, tmp_path)
    with pytest.raises(ConfigError, match=r"meds.features.logit_lens=False: the memory in .* was made with True"):
        replace(held, features={**FEATURES, "logit_lens": True}).require_match(held, tmp_path)


# ── another number of shards ──

BATCHES = stream(8)


def write(root: Path, shards: int = 2) -> WrittenMemory:
    """Five steps, with a snapshot after each."""
    memory = WrittenMemory(root, shards)
    for rows in BATCHES[:5]:
        memory.observe(rows)
        memory.snapshot()
    return memory


@pytest.fixture
def old(tmp_path: Path) -> WrittenMemory:
    return write(tmp_path / "old" / "memory")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list:
    return answered_by_one(tmp_path_factory.mktemp("whole"), BATCHES)


@pytest.mark.parametrize(("before", "after", "step"), [(1, 3, 2), (3, 2, 4), (2, 2, 4)])
def test_another_number_of_shards_gives_the_same_answers(
    tmp_path: Path, expected: list, caplog: pytest.LogCaptureFixture, before: int, after: int, step: int
) -> None:
    memory = write(tmp_path / "memory", before)
    memory.restore("global_step4")  # step 5's was not saved to the end
    memory.stop()
    checkpoints = {f"global_step{n}" for n in range(1, 5)}
    rewrite_memory(memory.paths, replace(memory.format, shards=after), checkpoints=checkpoints)
    if before != after:
        assert {path.stem for path in memory.paths.snapshots.iterdir()} == checkpoints
        assert caplog.text.count("a snapshot is skipped") == 1
    assert read_format(memory.paths) == replace(memory.format, shards=after)
    assert not memory.paths.before.root.exists()
    again = WrittenMemory(memory.root, after)
    again.restore(f"global_step{step}")
    assert sum(shard.stats().rows for shard in again.open) == sum(map(len, BATCHES[:step]))
    assert again.observe(*BATCHES[step:]) == expected[step:]


def test_a_file_beside_the_snapshots_stops_nothing(old: WrittenMemory, expected: list) -> None:
    old.stop()
    copy = old.paths.snapshots / "global_step4 copy.json"
    shutil.copy(old.paths.snapshot("global_step4"), copy)
    assert copy not in old.paths.manifests()
    rewrite_memory(old.paths, replace(old.format, shards=3))
    again = WrittenMemory(old.root, 3)
    again.restore("global_step4")
    assert again.observe(*BATCHES[4:]) == expected[4:]


@pytest.mark.parametrize("interrupted", ["write_steps", "commit_snapshot", "write_format", "rmtree"])
def test_a_rewriting_that_is_interrupted_goes_on_at_the_next_start(
    old: WrittenMemory, expected: list, monkeypatch: pytest.MonkeyPatch, interrupted: str
) -> None:
    old.stop()
    rows = open_memory(old.root.parent).table()
    with monkeypatch.context() as patch:
        patch.setattr(
            snapshot_module.shutil if interrupted == "rmtree" else snapshot_module,
            interrupted,
            failing(KeyboardInterrupt()),
        )
        with pytest.raises(KeyboardInterrupt):
            rewrite_memory(old.paths, replace(old.format, shards=3))
    assert old.paths.before.root.exists()
    for folder in (old.root.parent, old.root):
        assert open_memory(folder).table() == rows
    shards = {"write_steps": 2, "write_format": 1}.get(interrupted, 3)  # may be started with another number, as before
    rewrite_memory(old.paths, replace(old.format, shards=shards))
    assert not old.paths.before.root.exists()
    again = WrittenMemory(old.root, shards)
    again.restore("global_step4")
    assert again.observe(*BATCHES[4:]) == expected[4:]


def test_a_memory_that_fits_or_is_damaged_or_in_use_is_not_rewritten(old: WrittenMemory) -> None:
    before = {path: path.stat().st_mtime_ns for path in old.root.rglob("*") if path.is_file()}
    rewrite_memory(old.paths, old.format)  # which fits
    wanted = replace(old.format, shards=1)
    with pytest.raises(MemoryBusyError, match=rf"is in use by process {os.getpid()}"):
        rewrite_memory(old.paths, wanted, lock_seconds=0)
    assert {path: path.stat().st_mtime_ns for path in old.root.rglob("*") if path.is_file()} == before
    old.stop()
    file = files_of(old.root, shard=1)[0]
    file.write_bytes(file.read_bytes()[:-1])
    for _ in range(2):
        with pytest.raises(MemoryCorruptionError, match=rf"{file.name}: is damaged"):
            rewrite_memory(old.paths, wanted)
    assert not old.paths.before.root.exists()


@pytest.mark.parametrize("checkpoints", [None, {"global_step5"}])
def test_a_memory_without_rows_of_a_checkpoint_is_not_rewritten(
    old: WrittenMemory, expected: list, tmp_path: Path, checkpoints: set[str] | None
) -> None:
    """The lost file comes back from a backup, and everything is as before."""
    old.stop()
    lost = files_of(old.root, shard=0)[-1]
    backup = lost.rename(tmp_path / "backup")
    files = {path: path.read_bytes() for path in old.root.rglob("*") if path.is_file()}
    for _ in range(2):
        with pytest.raises(
            MemoryCorruptionError, match=r"rows up to step 5, and its snapshot global_step5 has \d+; re"
        ):
            rewrite_memory(old.paths, replace(old.format, shards=3), checkpoints=checkpoints)
    assert {path: path.read_bytes() for path in old.root.rglob("*") if path.is_file()} == files
    backup.rename(lost)
    rewrite_memory(old.paths, replace(old.format, shards=3), checkpoints=checkpoints)
    again = WrittenMemory(old.root, 3)
    again.restore("global_step5")
    assert again.observe(*BATCHES[5:]) == expected[5:]
