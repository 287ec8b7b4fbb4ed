"""Reading a configuration: what is accepted, and the one-line errors for what is not."""

import subprocess
import sys
from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError, load_config

REPOSITORY = Path(__file__).parents[2]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


MINIMAL = "meds: {run_dir: runs/x}\nactor.model_name_or_path: m\n"


def test_defaults_are_the_papers(tmp_path: Path) -> None:
    meds = load_config(write(tmp_path, MINIMAL)).meds
    assert (meds.penalty.alpha, meds.penalty.beta) == (0.1, 0.2)
    assert (meds.memory.min_cluster_size, meds.memory.min_samples, meds.memory.neighbors) == (2, 1, 3)
    assert (meds.features.layers, meds.features.normalize) == ("last-half", "l2")
    assert meds.features.answer_openings == ("\\boxed{",)


def test_overrides_win_and_may_be_written_in_every_usual_way(tmp_path: Path) -> None:
    words = [
        "--meds.penalty.alpha",
        "0.05",
        "--meds.memory.fsync=false",
        "--rollout.temperature=0.9",
        "--train.async_enable",
    ]
    words += ["--actor.eps_clip_low_high", "0.2", "0.28", "--meds.penalty.beta", "1e-1"]
    config = load_config(write(tmp_path, MINIMAL), words)
    assert config.meds.penalty.alpha == 0.05
    assert config.meds.penalty.beta == 0.1
    assert config.meds.memory.fsync is False
    assert config.openrlhf == {
        "actor.model_name_or_path": "m",
        "rollout.temperature": 0.9,
        "train.async_enable": True,
        "actor.eps_clip_low_high": [0.2, 0.28],
    }


def test_nested_and_dotted_keys_are_the_same(tmp_path: Path) -> None:
    nested = load_config(write(tmp_path, "meds:\n  run_dir: r\n  penalty:\n    alpha: 1\nactor:\n  adam.lr: 1.0e-4\n"))
    dotted = load_config(write(tmp_path, "meds.run_dir: r\nmeds.penalty.alpha: 1\nactor.adam.lr: 1.0e-4\n"))
    assert nested == dotted
    assert nested.meds.penalty.alpha == 1.0


def test_what_is_written_loads_back_the_same(tmp_path: Path) -> None:
    config = load_config(
        write(tmp_path, MINIMAL), ["--meds.features.answer_openings", "#### ", "<answer>", "--a.b", "1"]
    )
    assert load_config(write(tmp_path, config.as_yaml())) == config


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--meds.penalty.alfa", "1"], r"meds.penalty.alfa: 1 is no setting; did you mean alpha\?"),
        (["--meds.zzz", "1"], r"meds.zzz: 1 is no setting; known here: run_dir, enabled"),
        (["--meds.memory.shards", "two"], r"meds.memory.shards: 'two' has the wrong type; it should be int"),
        (["--meds.memory.shards", "0"], r"meds.memory.shards: 0 is below 1"),
        (["--meds.memory.shards", "true"], r"meds.memory.shards: True has the wrong type"),
        (["--meds.enabled", "1"], r"meds.enabled: 1 has the wrong type; it should be bool"),
        (["--meds.penalty", "1"], r"meds.penalty: 1 is a section"),
        (["--meds.penalty.alpha", "-0.1"], r"meds.penalty.alpha: -0.1 is negative"),
        (["--meds.features.layers", "first"], r"meds.features.layers: 'first' is none of"),
        (["--meds.features.layers", "1.5"], r"meds.features.layers: 1.5 is none of"),
        (
            ["--meds.features.difference", "true"],
            r"meds.features.difference: True has the wrong type",
        ),
        (["--meds.features.difference", "both"], r"meds.features.difference: 'both' is none of"),
        (["--meds.features.answer_pattern", "(a"], r"meds.features.answer_pattern: '\(a' is no regular expression"),
        (["--meds.features.normalize", "l1"], r"meds.features.normalize: 'l1' is neither"),
        (["--meds.reward", "chess"], r"meds.reward: 'chess' is not known"),
        (["--logger.wandb.key", "secret"], r"logger.wandb.key: '\*\*\*' belongs in the environment"),
        (["stray", "--a", "1"], r"argument: 'stray' is no override"),
    ],
)
def test_refused(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, MINIMAL), words)


@pytest.mark.parametrize(
    ("text", "message"),
    [("[1, 2]", "holds no mapping"), ("a: [", "is no valid YAML"), ("meds: {}", "meds.run_dir: None is missing")],
)
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, text))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"CONFIG: 'nowhere.yaml' cannot be read \(No such file or directory\)"):
        load_config("nowhere.yaml")


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs").rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_configuration_loads(path: Path) -> None:
    assert load_config(path).meds.run_dir


def test_importing_the_configuration_loads_nothing_heavy() -> None:
    script = (
        "import sys, meds_openrlhf.config, meds_openrlhf.cli.main\n"
        "heavy = {'torch', 'ray', 'vllm', 'deepspeed', 'transformers', 'openrlhf', 'hdbscan', 'pyarrow'}\n"
        "loaded = heavy & set(sys.modules)\n"
        "sys.exit(f'loaded {loaded}' if loaded else 0)"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
