"""Reading a configuration: what is accepted, and the one-line errors for what is not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from meds_openrlhf.config import ConfigError, MemorySettings, load_config
from meds_openrlhf.config.loader import as_word, parse_overrides
from meds_openrlhf.config.method import Method
from meds_openrlhf.config.removed import REMOVED

REPOSITORY = Path(__file__).parents[2]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


MINIMAL = "meds: {run_dir: runs/x}\nactor.model_name_or_path: m\n"


def test_defaults_are_the_papers(tmp_path: Path) -> None:
    meds = load_config(write(tmp_path, MINIMAL)).meds
    assert (meds.penalty.alpha, meds.penalty.beta) == (0.1, 0.2)
    assert (meds.memory.preset, meds.memory.remember) == ("paper", "wrong")
    assert (meds.memory.min_cluster_size, meds.memory.assignment, meds.memory.noise) == (None, None, None)
    assert (meds.features.layers, meds.features.normalize) == ("last-half", "l2")
    assert meds.features.answer_openings == ("\\boxed{",)


@pytest.mark.parametrize(
    "value",
    [*("a b", "1", "true", "null", "", "#### ", "a: b", "- a", '"q"', "it's"), 3, 1e-6, 0.28, True, None,
     [0.2, 0.28], [1], ["a", "b"], ["x" * 100, "y"]],
)  # fmt: skip
def test_a_value_as_a_word_is_read_back(value: object) -> None:
    assert parse_overrides([f"--a={as_word(value)}"]) == {"a": value}


def test_overrides_win_and_may_be_written_in_every_usual_way(tmp_path: Path) -> None:
    words = [
        "--meds.penalty.alpha",
        "0.05",
        "--meds.enabled=false",
        "--rollout.temperature=0.9",
        "--train.async_enable",
    ]
    words += ["--actor.eps_clip_low_high", "0.2", "0.28", "--meds.penalty.beta", "1e-1"]
    config = load_config(write(tmp_path, MINIMAL), words)
    assert config.meds.penalty.alpha == 0.05
    assert config.meds.penalty.beta == 0.1
    assert config.meds.enabled is False
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


@pytest.mark.parametrize(
    ("word", "expected"), [("all", "all"), ("0.25", 0.25), ("1e-3", 0.001), ("2.5E-1", 0.25), ("4", 4)]
)
def test_a_setting_that_is_a_number_or_a_word(tmp_path: Path, word: str, expected: object) -> None:
    path = write(tmp_path, MINIMAL + f"meds.features.layers: {word}\n")
    for config in (load_config(path), load_config(write(tmp_path, MINIMAL), ["--meds.features.layers", word])):
        value = config.meds.features.layers
        assert (value, type(value)) == (expected, type(expected))


def test_a_preset_with_single_settings_of_its_own(tmp_path: Path) -> None:
    memory = "meds.memory: {preset: robust, min_cluster_size: 3, noise: null}\n"
    words = ["--meds.memory.assignment", "joint", "--meds.memory.remember=both"]
    config = load_config(write(tmp_path, MINIMAL + memory), words)
    assert config.meds.memory == MemorySettings(
        preset="robust", min_cluster_size=3, assignment="joint", remember="both"
    )
    assert config.meds.memory.method == Method(algorithm="robust", min_cluster_size=3, assignment="joint")
    assert load_config(write(tmp_path, config.as_yaml())) == config


def test_what_is_written_loads_back_the_same(tmp_path: Path) -> None:
    config = load_config(
        write(tmp_path, MINIMAL), ["--meds.features.answer_openings", "#### ", "<answer>", "--a.b", "1"]
    )
    assert load_config(write(tmp_path, config.as_yaml())) == config


@pytest.mark.parametrize("pattern", ["Answer: (.*)", "(?s)<answer>(.*?)</answer>", "[Aa]nswer = (.*)", "#### (.*)"])
def test_a_pattern_is_taken_as_it_is_typed(tmp_path: Path, pattern: str) -> None:
    config = load_config(write(tmp_path, MINIMAL), ["--meds.features.answer_pattern", pattern])
    assert config.meds.features.answer_pattern == pattern
    assert load_config(write(tmp_path, config.as_yaml())) == config


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--meds.penalty.alfa", "1"], r"meds.penalty.alfa: 1 is no setting; did you mean alpha\?"),
        (["--meds.zzz", "1"], r"meds.zzz: 1 is no setting; known here: run_dir, enabled"),
        (["--meds.memory.shards", "two"], r"meds.memory.shards: 'two' has the wrong type; it should be int"),
        (["--meds.memory.shards", "0"], r"meds.memory.shards: 0 is below 1"),
        (["--meds.max_steps", "0"], r"meds.max_steps: 0 is below 1"),
        (["--meds.memory.shards", "true"], r"meds.memory.shards: True has the wrong type"),
        (["--meds.memory.preset", "papers"], r"""preset: 'papers' is not one of paper, reference, robust"""),
        (["--meds.memory.preset", "null"], r"memory.preset: None has the wrong type; it should be str"),
        (["--meds.memory.remember", "none"], r"""memory.remember: 'none' is not one of "wrong", "right" and "both\""""),
        (["--meds.memory.assignment", "nn"], r"""memory.assignment: 'nn' is not one of knn, joint"""),
        (["--meds.memory.noise", "true"], r"memory.noise: True has the wrong type; it should be str or nothing"),
        (["--meds.memory.noise", "row"], r"""memory.noise: 'row' is not one of none, cluster"""),
        (["--meds.memory.min_cluster_size", "1"], r"memory.min_cluster_size: 1 is below 2"),
        (["--meds.enabled", "1"], r"meds.enabled: 1 has the wrong type; it should be bool"),
        (["--meds.penalty", "1"], r"meds.penalty: 1 is a section"),
        (["--meds.penalty.alpha", "-0.1"], r"meds.penalty.alpha: -0.1 is negative"),
        (["--meds.features.layers", "first"], r"meds.features.layers: 'first' is not one of"),
        (["--meds.features.layers", "1.5"], r"meds.features.layers: 1.5 is not one of"),
        (
            ["--meds.features.difference", "true"],
            r"meds.features.difference: True has the wrong type",
        ),
        (["--meds.features.difference", "both"], r"meds.features.difference: 'both' is not one of"),
        (
            ["--meds.features.function", "f.py", "--meds.features.layers", "all"],
            "meds.features.layers: 'all' is about layer logits, in whose place meds.features.function puts features",
        ),
        (
            ["--meds.features.function", "f.py", "--meds.memory.preset", "answers"],
            "meds.features.function: 'f.py' is about layer logits, of which the preset \"answers\" remembers none",
        ),
        (["--meds.features.answer_pattern", "(a"], r"meds.features.answer_pattern: '\(a' is no regular expression"),
        (["--meds.features.answer_pattern", "Answer: "], r"answer_pattern: 'Answer: ' has 0 groups; put one around"),
        (["--meds.features.answer_pattern", "(a)(b)"], r"answer_pattern: '\(a\)\(b\)' has 2 groups; put one around"),
        (
            ["--meds.features.answer_pattern", "a: (.*)", "--meds.features.answer_openings", "#### "],
            r"meds.features.answer_openings: \['#### '\] does not go with answer_pattern",
        ),
        (
            ["--meds.reward", "math", "--meds.features.answer_openings", "#### "],
            r"meds.features.answer_openings: \['#### '\] is not what meds.reward judges, which looks for boxes",
        ),
        (["--meds.features.normalize", "l1"], r"meds.features.normalize: 'l1' is neither"),
        (
            ["--meds.memory.preset", "answers", "--meds.memory.noise", "cluster"],
            r"meds.memory.noise: 'cluster' does not apply",
        ),
        (["--meds.memory.preset", "answers", "--meds.features.layers", "all"], r"meds.features.layers: 'all' is about"),
        (["--meds.policy.entropy_advantage.kappa", "1"], r"meds.policy.entropy_advantage.kappa: 1.0 is not above 1"),
        (["--meds.policy.minibatches", "tokens"], r"meds.policy.minibatches: 'tokens' is neither"),
        (["--meds.policy.warmup_steps", "-1"], r"meds.policy.warmup_steps: -1 is negative"),
        (
            ["--meds.penalty.scope", "batch", "--meds.memory.noise", "none"],
            r"meds.memory.noise: 'none' is about",
        ),
        (["--meds.penalty.scope", "epoch"], r"meds.penalty.scope: 'epoch' is neither"),
        (["--meds.exploration.pass_at_k", "0"], r"meds.exploration.pass_at_k: 0 is below 1"),
        (["--meds.exploration.pass_at_k", "true"], r"meds.exploration.pass_at_k: True has the wrong type"),
        (["--meds.exploration.unlikeliness", "0.25"], r"meds.exploration.unlikeliness: 0.25 was removed: set meds.exp"),
        (["--meds.exploration.answer_bonus", "-1"], r"meds.exploration.answer_bonus: -1.0 is negative"),
        (["--meds.exploration.answer_baseline", "2"], r"meds.exploration.answer_baseline: 2.0 is not between 0 and 1"),
        (
            ["--meds.exploration.pass_at_k", "4", "--meds.exploration.answer_bonus", "0.1"],
            r"meds.exploration.pass_at_k: 4 does not go with meds.exploration.answer_bonus",
        ),
        (
            ["--meds.exploration.pass_at_k", "4", "--meds.enabled", "false"],
            r"meds.exploration.pass_at_k: 4 needs meds.enabled: true",
        ),
        (
            ["--meds.exploration.answer_bonus", "0.1"],
            r"meds.memory.preset: 'paper' is not what meds.exploration.answer_bonus counts by; set \"answers\"",
        ),
        (
            ["--meds.exploration.answer_bonus", "0.1", "--meds.memory.preset", "answers"],
            r"meds.memory.remember: 'wrong' is not what .* counts by; set \"both\"",
        ),
        (
            [
                *("--meds.exploration.answer_bonus", "0.1", "--meds.memory.preset", "answers"),
                *("--meds.memory.remember", "both", "--meds.penalty.scope", "batch"),
            ],
            r"meds.penalty.scope: 'batch' is not what .* counts by; set \"history\"",
        ),
        (["--meds.policy.kl_cov.coef", "1"], r"meds.policy.kl_cov: .* was removed: leave it out"),
        (["--meds.reward", "chess"], r"meds.reward: 'chess' is not one of"),
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


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs").glob("*/*.yaml")), ids=str)
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


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_setting_is_one_line_unless_it_changes_nothing(tmp_path: Path, name: str) -> None:
    (same, *_), hint = REMOVED[name]
    assert load_config(write(tmp_path, MINIMAL + yaml.safe_dump({name: same}))) == load_config(write(tmp_path, MINIMAL))
    with pytest.raises(ConfigError, match=rf"^{name}: 'other' was removed: {re.escape(hint)}$"):
        load_config(write(tmp_path, MINIMAL), [f"--{name}", "other"])


def test_a_configuration_that_an_earlier_version_wrote_is_read(tmp_path: Path) -> None:
    """As it is in every run folder: all settings, those that were removed too."""
    old = """meds:
  run_dir: runs/old
  memory: {shards: 1, prompt_id_key: null, fsync: true, on_lost: stop, archive: null, preset: robust,
           min_cluster_size: null, min_samples: null, metric: null, allow_single_cluster: null,
           selection_epsilon: null, assignment: null, neighbors: null, neighbor_metric: null, ties: null,
           noise: null, window_rows: null, window_visits: null}
  policy: {minibatches: responses, kl_cov: {coef: 0.0, share: 0.002}}
  exploration: {pass_at_k: null, unlikeliness: 0.0}
  tracking: {rollouts: all, snapshots: reference, eigen_window: 50}
"""
    assert load_config(write(tmp_path, old)).meds.memory == MemorySettings(shards=1, preset="robust")
