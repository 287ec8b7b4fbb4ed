"""What a report says of a run's settings."""

from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError, MedsSettings, MemorySettings, PenaltySettings, RunConfig
from meds_openrlhf.config.schema import EntropyAdvantageSettings, ExplorationSettings, PolicySettings
from meds_openrlhf.files import UnusableFileError
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.run_folder import set_back
from meds_openrlhf.runs.settings import compare_settings, flat_settings, method_in_words, names_of, planned_steps


def config(preset: str = "paper", alpha: float = 0.1, enabled: bool = True, **flags: object) -> RunConfig:
    memory, penalty = MemorySettings(preset=preset), PenaltySettings(alpha=alpha)
    return RunConfig(MedsSettings(run_dir="r", enabled=enabled, memory=memory, penalty=penalty), dict(flags))


def test_the_method_in_words() -> None:
    dapo = {
        "algo.advantage.estimator": "group_norm", "algo.dynamic_filtering_enable": True,
        "actor.eps_clip_low_high": [0.2, 0.28],
    }  # fmt: skip
    assert method_in_words(config(**dapo)) == (
        "GRPO, clip 0.2 to 0.28, dynamic sampling, MEDS (paper, alpha 0.1, beta 0.2)"
    )
    rloo = {"algo.advantage.estimator": "rloo"}
    assert method_in_words(config(alpha=0.0, **rloo)) == "RLOO, errors remembered (paper), no penalty"
    assert method_in_words(config(enabled=False)) == "PPO, no memory"
    for penalty, words in (
        (PenaltySettings(form="weights", alpha=0.0), "PPO, MEDS by weights (paper)"),
        (PenaltySettings(shuffled=True), "PPO, MEDS (paper, alpha 0.1, beta 0.2), sizes shuffled"),
        (PenaltySettings(alpha=0.0, extras=32), "PPO, 32 extras, errors remembered (paper), no penalty"),
    ):
        assert method_in_words(RunConfig(MedsSettings(run_dir="r", penalty=penalty), {})) == words
    explore = ExplorationSettings(pass_at_k=4)
    policy = PolicySettings(entropy_advantage=EntropyAdvantageSettings(alpha=0.4))
    meds = MedsSettings(run_dir="r", exploration=explore, policy=policy)
    assert method_in_words(RunConfig(meds, {"algo.advantage.estimator": "flash_reinforce"})) == (
        "FlashREINFORCE, entropy advantage 0.4, pass@4 advantages, MEDS (paper, alpha 0.1, beta 0.2)"
    )
    assert method_in_words(None) == "unknown: the folder has no config.yaml"


def test_settings_side_by_side() -> None:
    rows = compare_settings([{"z": 1, "meds.penalty.alpha": 0.1, "meds.run_dir": "a"}, {"z": 1, "y": [True, 2]}])
    assert [tuple(row.values()) for row in rows] == [
        ("meds.penalty.alpha", ["0.1", None], True, True),
        ("y", [None, "True, 2"], False, True),
        ("z", ["1", "1"], False, False),
    ]
    (lr,) = compare_settings([{"actor.adam.lr": "1e-6"}, {"actor.adam.lr": 1e-6}])  # as YAML reads 1e-6 and 1.0e-6
    assert not lr["differs"]


def test_removed_settings_at_their_defaults_are_not_compared(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.config.write_text("meds: {run_dir: r, penalty: {alpha: 0.1, scope: history}}\n")
    assert flat_settings(paths) == {"meds.run_dir": "r", "meds.penalty.alpha": 0.1}


def test_planned_steps_are_those_that_the_run_wrote(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    assert planned_steps(paths) is None  # of an atlas, or an older run
    set_back(paths, RunConfig(MedsSettings(run_dir="r"), {}), None, 40)
    assert planned_steps(paths) == 40
    for damaged in ("-3", "4.5", "", "9" * 50):
        paths.planned_steps.write_text(damaged)
        with pytest.raises(UnusableFileError):
            planned_steps(paths)


def test_settings_are_shown_without_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_SECRET", "correct-horse")
    paths = RunPaths(tmp_path)
    paths.config.write_text(
        "meds: {memory: {archive: 's3://KEY:pass@bucket/runs', preset: paper}}\nckpt: {path: /mnt/correct-horse/x}\n"
    )
    assert flat_settings(paths) == {
        "meds.memory.archive": "***", "meds.memory.preset": "paper", "ckpt.path": "***",
    }  # fmt: skip


def test_names_of_runs_are_short_and_different() -> None:
    assert names_of([Path("/x/a"), Path("/x/b")]) == ["a", "b"]
    assert names_of([Path("/x/a"), Path("/y/a")]) == ["x/a", "y/a"]
    assert names_of([Path("/1/x/a"), Path("/2/x/a")]) == ["/1/x/a", "/2/x/a"]
    with pytest.raises(ConfigError, match="is named twice"):
        names_of([Path("/x/a"), Path("/x/a")])
