"""Manifests: whole or absent, and never a way out of the run folder."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.log import LogState
from meds_openrlhf.memory.snapshot import (
    MemoryFormat,
    Snapshot,
    commit_snapshot,
    read_format,
    read_snapshot,
    write_format,
)
from meds_openrlhf.paths import MemoryPaths

FORMAT = MemoryFormat(shards=2, layers=8, model={"architecture": "Qwen2ForCausalLM", "layers": 8})
SNAPSHOT = Snapshot(FORMAT, "abc", LogState(5, {"shard-0000": 0, "shard-0001": 10}))


def test_round_trip(tmp_path: Path) -> None:
    paths = MemoryPaths(tmp_path)
    commit_snapshot(paths, "global_step5", SNAPSHOT)
    assert read_snapshot(paths.snapshot("global_step5")) == SNAPSHOT
    assert [path.name for path in paths.snapshots.iterdir()] == ["global_step5.json"]


@pytest.mark.parametrize("name", ["../evil", "a/b", "", ".hidden"])
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="snapshot name"):
        MemoryPaths(tmp_path).snapshot(name)


@pytest.mark.parametrize(
    "name", ["../../etc", "/etc", "shard-0001/../../x", "shard-0001/", "shard-0001\n", "a/shard-0001", ""]
)
def test_a_manifest_that_names_a_folder_outside_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(MemoryCorruptionError, match=r"s\.json: names .*, which are not folders of a memory"):
        read_changed(tmp_path, {"rows": {name: 3}})


@pytest.mark.parametrize(
    "changes",
    [{"step": "5"}, {"step": 5.0}, {"step": None}, {"step": True}, {"rows": {"shard-0000": -1}},
     {"rows": {"shard-0000": "7"}}, {"rows": {"shard-0000": 1.5}}],
)  # fmt: skip
def test_a_count_that_is_not_a_number_is_refused(tmp_path: Path, changes: dict) -> None:
    with pytest.raises(MemoryCorruptionError, match=r"s\.json: its step or a count of its rows is not a number"):
        read_changed(tmp_path, changes)


@pytest.mark.parametrize("rows", [None, 5, [], "shard-0000"])
def test_rows_that_are_not_a_mapping_are_refused(tmp_path: Path, rows: object) -> None:
    with pytest.raises(MemoryCorruptionError, match=r"s\.json"):
        read_changed(tmp_path, {"rows": rows})


def read_changed(root: Path, changes: dict) -> Snapshot:
    paths = MemoryPaths(root)
    commit_snapshot(paths, "s", SNAPSHOT)
    paths.snapshot("s").write_text(json.dumps({**json.loads(paths.snapshot("s").read_text()), **changes}))
    return read_snapshot(paths.snapshot("s"))


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "\x00\xff", '{"format": {"a": 1}, "config_hash": "", "step": 1, "rows": {}}']
)
def test_a_broken_manifest_is_named(tmp_path: Path, content: str) -> None:
    paths = MemoryPaths(tmp_path)
    paths.snapshots.mkdir()
    paths.snapshot("s").write_text(content)
    with pytest.raises(MemoryCorruptionError, match=r"s\.json"):
        read_snapshot(paths.snapshot("s"))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"format_version": 1, "old_field": 3},
            ConfigError,
            "holds a memory of format 1, and this program reads",
        ),
        ({"features": 5}, MemoryCorruptionError, "wrong type"),
        ({"step_offset": "7"}, MemoryCorruptionError, "wrong type"),
        ({"more": 1}, MemoryCorruptionError, "is not a memory format"),
    ],
)
def test_a_format_that_is_wrong_is_named(tmp_path: Path, changes: dict, error: type, message: str) -> None:
    paths = MemoryPaths(tmp_path)
    write_format(paths, FORMAT)
    paths.format.write_text(json.dumps({**json.loads(paths.format.read_text()), **changes}))
    with pytest.raises(error, match=rf"format\.json.*{message}"):
        read_format(paths)


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(MemoryCorruptionError, match=r"global_step9\.json: is missing"):
        read_snapshot(MemoryPaths(tmp_path).snapshot("global_step9"))


def test_the_format_of_another_model_is_refused(tmp_path: Path) -> None:
    paths = MemoryPaths(tmp_path)
    assert read_format(paths) is None
    write_format(paths, FORMAT)
    held = read_format(paths)
    assert held == FORMAT
    held.require_match(FORMAT, tmp_path)
    other = MemoryFormat(shards=2, layers=4, model={"architecture": "LlamaForCausalLM", "layers": 4})
    with pytest.raises(ConfigError, match=r"meds.run_dir=.* another model .*Qwen2ForCausalLM.*LlamaForCausalLM"):
        held.require_match(other, tmp_path)
    held.require_match(MemoryFormat(3, 8, FORMAT.model), tmp_path)  # prompts may be divided anew


def test_another_variant_of_the_features_is_refused(tmp_path: Path) -> None:
    features = {"layers": "last-half", "difference": "none", "answer_openings": ["\\boxed{"]}
    held = MemoryFormat(2, 8, FORMAT.model, features)
    write_format(MemoryPaths(tmp_path), held)
    assert read_format(MemoryPaths(tmp_path)) == held
    held.require_match(MemoryFormat(2, 8, FORMAT.model, dict(features)), tmp_path)
    for name, value in (
        ("layers", "all"),
        ("difference", "before"),
        ("answer_openings", ["####"]),
    ):
        other = MemoryFormat(2, 8, FORMAT.model, {**features, name: value})
        with pytest.raises(ConfigError, match=rf"meds.features.{name}=.*: the memory in .* was made with"):
            held.require_match(other, tmp_path)
    # A setting of an earlier version: what was off does not matter.
    replace(held, features={**features, "logit_lens": False}).require_match(held, tmp_path)
    with pytest.raises(ConfigError, match=r"meds.features.logit_lens=False: the memory in .* was made with True"):
        replace(held, features={**features, "logit_lens": True}).require_match(held, tmp_path)
