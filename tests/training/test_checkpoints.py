"""Only whole checkpoints are gone on from."""

from pathlib import Path

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.training.checkpoints import newest_complete, point_latest_to


def save(paths: RunPaths, tag: str, complete: bool = True) -> None:
    (paths.policy_checkpoints / tag).mkdir(parents=True)
    if complete:
        paths.complete.mkdir(parents=True, exist_ok=True)
        (paths.complete / tag).touch()


def test_the_newest_that_is_whole(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    assert newest_complete(paths) is None
    save(paths, "global_step8")
    save(paths, "global_step12")
    save(paths, "global_step16", complete=False)  # killed while it was saved
    assert newest_complete(paths) == ("global_step12", 12)


def test_a_marker_whose_checkpoint_was_removed_does_not_count(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    save(paths, "global_step4")
    (paths.complete / "global_step8").touch()
    assert newest_complete(paths) == ("global_step4", 4)


def test_best_checkpoints_count_and_regular_ones_come_first(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    save(paths, "global_step4")
    save(paths, "best_global_step6")
    assert newest_complete(paths) == ("best_global_step6", 6)
    save(paths, "global_step6")
    assert newest_complete(paths) == ("global_step6", 6)


def test_deepspeed_is_pointed_to_it(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    save(paths, "global_step4")
    point_latest_to(paths, "global_step4")
    assert (paths.policy_checkpoints / "latest").read_text() == "global_step4"
