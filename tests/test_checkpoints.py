"""Only whole checkpoints are gone on from."""

import json
from pathlib import Path

import pytest

from meds_openrlhf.checkpoints import (
    Checkpoint,
    mark_complete,
    newest_complete,
    point_latest_to,
    ranks_saved,
    remove_partial,
    remove_stale,
    saved_tags,
)
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.paths import RunPaths


def save(paths: RunPaths, tag: str, step: int | None, roles: tuple[str, ...] = ("_actor",)) -> None:
    for role in roles:
        folder = paths.checkpoints / role / tag
        folder.mkdir(parents=True)
        (folder / "weights.pt").write_bytes(b"x" * 10)
    if step is not None:
        mark_complete(paths, tag, step)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


def test_only_the_newest_that_is_whole_counts(paths: RunPaths) -> None:
    assert newest_complete(paths) is None
    save(paths, "global_step4", 4)
    save(paths, "global_step8", 8)
    save(paths, "global_step16", None)  # killed while it was saved
    (paths.complete / "global_step18").write_text("{")
    (paths.complete / "global_step19").write_text(json.dumps({"step": 19, "files": {}}))
    assert newest_complete(paths) == Checkpoint("global_step8", 8)
    # One that was being removed.
    (paths.policy_checkpoints / "global_step8" / "weights.pt").unlink()
    assert newest_complete(paths) == Checkpoint("global_step4", 4)
    (paths.policy_checkpoints / "global_step4" / "weights.pt").write_bytes(b"x" * 9)
    assert newest_complete(paths) is None


def test_the_critic_belongs_to_it(paths: RunPaths) -> None:
    save(paths, "global_step4", 4, roles=("_actor", "_critic"))
    save(paths, "global_step8", 8, roles=("_actor", "_critic"))
    (paths.checkpoints / "_critic/global_step8/weights.pt").unlink()
    assert newest_complete(paths) == Checkpoint("global_step4", 4)
    point_latest_to(paths, "global_step4")
    assert (paths.checkpoints / "_actor/latest").read_text() == "global_step4"
    assert (paths.checkpoints / "_critic/latest").read_text() == "global_step4"


def test_best_checkpoints_count_by_the_step_they_were_saved_at(paths: RunPaths) -> None:
    save(paths, "global_step4", 4)
    save(paths, "best_global_step4", 5)  # an asynchronous run was a step further when it heard of the evaluation
    assert newest_complete(paths) == Checkpoint("best_global_step4", 5)
    save(paths, "global_step5", 5)
    assert newest_complete(paths) == Checkpoint("global_step5", 5)


def test_moments_belong_to_it_and_go_with_it(paths: RunPaths) -> None:
    for tag, step in (("global_step4", 4), ("global_step8", 8)):
        paths.diversity(tag).parent.mkdir(parents=True, exist_ok=True)
        paths.diversity(tag).write_bytes(b"xyz")
        save(paths, tag, step)
    paths.diversity("global_step8").write_bytes(b"xy")  # cut short
    assert newest_complete(paths) == Checkpoint("global_step4", 4)
    assert saved_tags(paths) == {"global_step4", "global_step8"}
    remove_stale(paths, {"global_step8"})
    assert [marker.name for marker in paths.complete.iterdir()] == ["global_step8"]
    assert [path.name for path in paths.diversity_folder.iterdir()] == ["global_step8.npz"]


def test_the_ranks_of_a_checkpoint_are_its_optimizers_parts(paths: RunPaths) -> None:
    for role, count in (("_actor", 3), ("_critic", 2)):
        folder = paths.checkpoints / role / "global_step4"
        folder.mkdir(parents=True)
        (folder / "mp_rank_00_model_states.pt").touch()
        for rank in range(count):
            (folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
            (folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt").touch()
    assert ranks_saved(paths, "global_step4") == {"policy": 3, "critic": 2}
    assert ranks_saved(paths, "global_step8") == {}


MARKERS = rb"""
[]
2
{"step": 9}
{"files": {"x": 10}}
{"step": "9", "files": {"x": 10}}
{"step": -1, "files": {"x": 10}}
{"step": 1e30, "files": {"x": 10}}
{"step": 9, "files": {}}
{"step": 9, "files": ["x"]}
{"step": 9, "files": {"../outside": 10}}
{"step": 9, "files": {"linked": 10}}
{"step": 9, "files": {"\u0000": 1}}
"""


@pytest.mark.parametrize("marker", [*MARKERS.split(b"\n"), b"\xff", b"[" * 50_000])
def test_a_marker_that_lies_marks_nothing(paths: RunPaths, marker: bytes) -> None:
    save(paths, "global_step4", 4)
    (paths.root / "outside").write_bytes(b"x" * 10)
    (paths.checkpoints / "x").write_bytes(b"x" * 10)
    (paths.checkpoints / "linked").symlink_to("../outside")
    (paths.complete / "global_step9").write_bytes(marker)
    assert newest_complete(paths) == Checkpoint("global_step4", 4)


def test_checkpoints_of_others_are_never_removed(tmp_path: Path) -> None:
    """A run that was copied from a stranger may have another run's folder in place of its own."""
    paths, other = RunPaths(tmp_path / "run"), RunPaths(tmp_path / "other")
    save(other, "global_step5", 5)
    save(paths, "global_step4", 4, roles=("_critic",))
    (paths.checkpoints / "_actor").symlink_to(other.policy_checkpoints)
    with pytest.raises(ConfigError, match="leads out"):
        remove_partial(paths)
    assert (other.policy_checkpoints / "global_step5" / "weights.pt").exists()
