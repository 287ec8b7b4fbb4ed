"""Manifests and formats: round trips, and what is refused before it can lead anywhere."""

import json
from dataclasses import asdict, replace
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
