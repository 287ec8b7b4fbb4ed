"""A run's folder names files in it, and none outside."""

from pathlib import Path

import pytest

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.paths import RunPaths, as_folder_name, entries_of, inside, leads_out


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    (tmp_path / "run" / "rollouts").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "secret").write_text("precious")
    return RunPaths(tmp_path / "run")


@pytest.mark.parametrize(
    "name",
    ["config.yaml", "metrics.jsonl", "tokenizer.json", ".lock", "tracking.json", "checkpoints", "memory", "model"],
)
@pytest.mark.parametrize("target", ["../secret", "../other", "/dev/zero", "../nowhere"])
def test_a_link_out_of_it_is_refused_where_it_is_named(run: RunPaths, name: str, target: str) -> None:
    (run.root / name).symlink_to(target)
    with pytest.raises(ConfigError, match=f"{name}: leads out of the folder"):
        _ = [run.config, run.metrics, run.tokenizer, run.lock, run.tracking, run.checkpoints, run.memory, run.model]


def test_links_inside_of_it_and_to_it_are_followed(run: RunPaths, tmp_path: Path) -> None:
    (run.root / "really.jsonl").write_text("{}")
    run.metrics.symlink_to("really.jsonl")
    (tmp_path / "elsewhere").symlink_to("run")
    assert RunPaths(tmp_path / "elsewhere").metrics.read_text() == "{}"


def test_entries_that_lead_out_are_refused_too(run: RunPaths) -> None:
    (run.rollouts_folder / "000001.arrow").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="leads out"):
        run.rollouts(1)
    with pytest.raises(ConfigError, match="leads out"):
        entries_of(run.root, run.rollouts_folder)
    run.complete.mkdir(parents=True)
    (run.complete / "global_step4").symlink_to("../../../secret")
    with pytest.raises(ConfigError, match="leads out"):
        run.markers()


@pytest.mark.parametrize("name", ["..", "../other", "a/../../other", "/etc/hostname", "rollouts/../../other"])
def test_names_lead_out_without_links(run: RunPaths, name: str) -> None:
    assert leads_out(run.root, name)
    with pytest.raises(ConfigError, match="leads out"):
        inside(run.root, name)


def test_a_name_of_a_users_is_the_name_of_one_folder() -> None:
    names = {
        "my run [1] ä": "my run [1] ä",
        "../../up": ".._.._up",
        "..": "_",
        "": "_",
        "a/b": "a_b",
        "x" * 300: "x" * 128,
    }
    assert {name: as_folder_name(name) for name in names} == names
