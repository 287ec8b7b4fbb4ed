"""Named changes to a run's file."""

from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError, load_config


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "run.yaml").write_text("meds:\n  run_dir: runs/base\n  penalty.alpha: 0.3\n")
    (tmp_path / "some.yaml").write_text(
        "steep:\n  meds.penalty: {alpha: 0.5}\n  rollout.temperature: 0.7\nnothing: {}\n7: {}\nno/name: {}\nflat: 3\n"
    )
    return tmp_path


def test_a_variant_changes_the_file_and_is_changed_by_overrides(files: Path) -> None:
    words = ["--variant", f"{files}/some.yaml:steep"]
    config = load_config(files / "run.yaml", words)
    assert (config.meds.penalty.alpha, config.openrlhf["rollout.temperature"]) == (0.5, 0.7)
    assert config.meds.run_dir == "runs/base-steep"
    config = load_config(files / "run.yaml", ["--meds.penalty.alpha=0.9", *words, "--meds.run_dir", "mine"])
    assert (config.meds.penalty.alpha, config.meds.run_dir) == (0.9, "mine")


def test_variants_add_up_where_other_overrides_replace_each_other(files: Path) -> None:
    words = [f"--variant={files}/some.yaml:steep", "--rollout.temperature=1", "--variant", f"{files}/some.yaml:nothing"]
    config = load_config(files / "run.yaml", [*words, "--rollout.temperature=2"])
    assert (config.meds.penalty.alpha, config.meds.run_dir) == (0.5, "runs/base-steep-nothing")
    assert config.openrlhf["rollout.temperature"] == 2
    (files / "run.yaml").write_text("meds:\n  reward: math\n")
    with pytest.raises(ConfigError, match=r"meds\.run_dir"):  # without a folder it is refused as ever
        load_config(files / "run.yaml", words)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("steep", "--variant=steep: must be FILE:NAME, e.g. "),
        ("{0}/some.yaml:stepe", "stepe: unknown variant. Did you mean steep?"),
        ("{0}/some.yaml:other", "other: unknown variant. Choose one of steep, nothing, 7, no/name, flat."),
        ("{0}/none.yaml:steep", "not a readable YAML file (No such file or directory)."),
        ("{0}/some.yaml:no/name", "not a variant, which has a name without / and below it settings by dotted key"),
        ("{0}/some.yaml:flat", "not a variant, which has a name without / and below it settings by dotted key"),
        ("{0}/run.yaml:meds", "not a variant, which has a name without / and below it settings by dotted key"),
    ],
)
def test_refused(files: Path, reference: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(files / "run.yaml", ["--variant", reference.format(files)])
    assert message in str(raised.value)
