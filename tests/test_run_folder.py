"""The driver's hold on the run folder."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from meds_openrlhf.checkpoints import mark_complete
from meds_openrlhf.config import ConfigError, MedsSettings, RunConfig
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.run_folder import run_paths_of, set_back, sole_driver_of
from tests.test_locks import without_locks


def test_two_drivers_never_share_a_folder(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run")
    with sole_driver_of(paths, False, 180.0):
        for resume, seconds in ((True, 0.6), (False, 180.0)):  # a new run does not wait
            second = sole_driver_of(paths, resume, seconds)
            with pytest.raises(ConfigError, match=r"meds.run_dir=.*: is in use by process"), second:
                raise AssertionError("two drivers")
        assert paths.lock.exists()
    with sole_driver_of(paths, False, 180.0):  # free again
        pass


def test_a_save_that_was_interrupted_is_removed_and_no_other(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    others = ["global_step2.bak", "old_global_step3", "latest"]
    for tag in (*others[:2], "best_global_step1", "global_step2", "global_step3"):
        (paths.policy_checkpoints / tag).mkdir(parents=True)
        (paths.policy_checkpoints / tag / "part").touch()
    (paths.policy_checkpoints / "latest").touch()
    config = RunConfig(meds=MedsSettings(run_dir=str(tmp_path)), openrlhf={})
    for marked in ([], ["global_step2", "best_global_step1"]):
        for tag in marked:
            mark_complete(paths, tag, 2)
        assert set_back(paths, config, None, 40) == 0
        left = {path.name for path in paths.policy_checkpoints.iterdir()}
        assert left == {*others, "global_step2", "best_global_step1", *([] if marked else ["global_step3"])}


def test_without_locks_one_line_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks(monkeypatch)
    driver = sole_driver_of(RunPaths(tmp_path), False, 180.0)
    with pytest.raises(ConfigError, match=r"meds.run_dir=.*has no file locks .*lock_seconds: null"), driver:
        raise AssertionError("it was locked")
    with sole_driver_of(RunPaths(tmp_path), False, None):
        pass


def test_a_folder_that_cannot_be_made_or_lies_in_a_jobs_copy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = sole_driver_of(RunPaths(Path("/proc/no/run")), False, 180.0)
    with pytest.raises(ConfigError, match=r"meds.run_dir=/proc/no/run: cannot be written to"), driver:
        raise AssertionError("it was made")
    config = SimpleNamespace(meds=SimpleNamespace(run_dir="runs/x"))
    assert run_paths_of(config).root == Path("runs/x").absolute()
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    with pytest.raises(ConfigError, match=r"meds.run_dir=runs/x: .* Name an absolute path"):
        run_paths_of(config)


def test_a_refused_run_leaves_no_folder_and_a_started_one_stays(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run")
    with pytest.raises(ConfigError), sole_driver_of(paths, False, 180.0):
        raise ConfigError("a", 1, "is wrong")
    assert not paths.root.exists()
    driver = sole_driver_of(paths, False, 180.0)
    with pytest.raises(ConfigError, match="is wrong"), driver:  # noqa: PT012 - the run writes, then fails
        paths.config.write_text("meds: {}\n")
        raise ConfigError("a", 1, "is wrong")
    assert paths.config.exists()
    with (
        pytest.raises(ConfigError, match=r"holds a run that has finished no step\. Add --resume"),
        sole_driver_of(paths, False, 180.0),
    ):
        raise AssertionError("started twice")
    with (
        sole_driver_of(paths, True, 180.0),
        pytest.raises(ConfigError, match=rf"in use by process {os.getpid()}"),
        sole_driver_of(paths, False, 180.0),
    ):
        raise AssertionError("started beside another")
