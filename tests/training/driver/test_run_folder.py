"""The driver's hold on the run folder."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.training.driver import run_folder
from meds_openrlhf.training.driver.run_folder import run_paths_of, sole_driver_of


def test_two_drivers_never_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "RELEASE_SECONDS", 0.6)
    paths = RunPaths(tmp_path / "run")
    with sole_driver_of(paths, resume=False):
        second = sole_driver_of(paths, resume=True)
        with pytest.raises(ConfigError, match=r"meds.run_dir: .* is in use by another process"), second:
            raise AssertionError("two drivers")
        assert paths.lock.exists()
    with sole_driver_of(paths, resume=False):  # free again
        pass


def test_a_refused_run_leaves_no_folder_and_a_started_one_stays(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run")
    with pytest.raises(ConfigError), sole_driver_of(paths, resume=False):
        raise ConfigError("a", 1, "is wrong")
    assert not paths.root.exists()
    driver = sole_driver_of(paths, resume=False)
    with pytest.raises(ConfigError, match="is wrong"), driver:  # noqa: PT012 - the run writes, then fails
        paths.config.write_text("meds: {}\n")
        raise ConfigError("a", 1, "is wrong")
    assert paths.config.exists()
    with (
        pytest.raises(ConfigError, match="holds a run that has finished no step; add --resume"),
        sole_driver_of(paths, resume=False),
    ):
        raise AssertionError("started twice")


def test_a_folder_that_cannot_be_made_is_named() -> None:
    driver = sole_driver_of(RunPaths(Path("/proc/no/run")), resume=False)
    with pytest.raises(ConfigError, match=r"meds.run_dir: '/proc/no/run' cannot be written to"), driver:
        raise AssertionError("it was made")


def test_a_submitted_job_needs_a_folder_named_from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace(meds=SimpleNamespace(run_dir="runs/x"))
    assert run_paths_of(config).root == Path("runs/x").absolute()
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    with pytest.raises(ConfigError, match=r"meds.run_dir: 'runs/x' is relative"):
        run_paths_of(config)
