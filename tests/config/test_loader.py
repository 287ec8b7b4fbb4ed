"""Reading a configuration: what is accepted, and the one-line errors for what is not."""

import re
import textwrap
from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError, MemorySettings, load_config
from meds_openrlhf.config.loader import settings_of
from meds_openrlhf.config.method import ClusteringMethod
from meds_openrlhf.config.removed import without_removed


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


MINIMAL = "meds: {run_dir: runs/x}\nactor.model_name_or_path: m\n"


def test_overrides_win_and_may_be_written_in_every_usual_way(tmp_path: Path) -> None:
    words = "--meds.penalty.alpha 0.05 --meds.enabled=false --rollout.temperature=0.9 --train.async_enable"
    words += " --actor.eps_clip_low_high 0.2 0.28 --meds.penalty.beta 1e-1"
    words += " --meds.memory.assignment joint --meds.memory.remember=both"
    memory = "meds.memory: {preset: robust, min_cluster_size: 3, noise: null}\n"
    config = load_config(write(tmp_path, MINIMAL + memory), words.split())
    assert (config.meds.penalty.alpha, config.meds.penalty.beta, config.meds.enabled) == (0.05, 0.1, False)
    flags = {"actor.model_name_or_path": "m", "rollout.temperature": 0.9, "train.async_enable": True}
    assert config.openrlhf == {**flags, "actor.eps_clip_low_high": [0.2, 0.28]}
    single = dict(min_cluster_size=3, assignment="joint")
    assert config.meds.memory == MemorySettings(preset="robust", remember="both", **single)
    assert config.meds.memory.method == ClusteringMethod(algorithm="robust", **single)
    assert load_config(write(tmp_path, MINIMAL), {"meds.max_steps": 3}).meds.max_steps == 3


def test_nested_and_dotted_keys_are_the_same(tmp_path: Path) -> None:
    nested = load_config(write(tmp_path, "meds:\n  run_dir: r\n  penalty:\n    alpha: 1\nactor:\n  adam.lr: 1.0e-4\n"))
    dotted = load_config(write(tmp_path, "meds.run_dir: r\nmeds.penalty.alpha: 1\nactor.adam.lr: 1.0e-4\n"))
    assert nested == dotted
    assert type(nested.meds.penalty.alpha) is float


@pytest.mark.parametrize(
    ("word", "expected"), [("all", "all"), ("0.25", 0.25), ("1e-3", 0.001), ("2.5E-1", 0.25), ("4", 4)]
)
def test_a_setting_that_is_a_number_or_a_word(tmp_path: Path, word: str, expected: object) -> None:
    path = write(tmp_path, MINIMAL + f"meds.features.layers: {word}\n")
    for config in (load_config(path), load_config(write(tmp_path, MINIMAL), ["--meds.features.layers", word])):
        value = config.meds.features.layers
        assert (value, type(value)) == (expected, type(expected))


PATTERNS = ["Answer: (.*)", "(?s)<answer>(.*?)</answer>", "[Aa]nswer = (.*)", "#### (.*)"]


@pytest.mark.parametrize(
    "words",
    [
        ["--data.prompt_probs", "0.5", "0.5", "--a.b", "1"],
        ["--meds.memory.preset=robust", "--meds.memory.min_cluster_size=3"],
        *[["--meds.features.answer_pattern", pattern] for pattern in PATTERNS],
        ["--logger.wandb.run_name", "2026-02-30"],  # no date, though it looks like one
    ],
)
def test_what_is_written_loads_back_the_same(tmp_path: Path, words: list[str]) -> None:
    config = load_config(write(tmp_path, MINIMAL), words)
    assert load_config(write(tmp_path, config.as_yaml())) == config
    if "pattern" in words[0]:  # which is taken as it is typed
        assert config.meds.features.answer_pattern == words[1]


COUNT = "must be an integer that is at least 1"
ONE_GROUP = "must be a text that is a regular expression with one group, e.g. 'Answer: (.*)', or null."
NO_LOGITS = 'concerns layer logits, but the preset "answers" remembers final answers. Leave it out.'
FUNCTION, ANSWERS = "--meds.features.function=f.py", "--meds.memory.preset=answers"
PASS, BONUS = "--meds.exploration.pass_at_k=4", "--meds.exploration.answer_bonus=0.1"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--meds.penalty.alfa=1", "meds.penalty.alfa=1: unknown setting. Did you mean meds.penalty.alpha?"),
        ("--meds.zzz=1", "meds.zzz=1: unknown setting. Choose one of run_dir, enabled, "),
        *[(f"--meds.memory.shards={value}", f"meds.memory.shards={value}: {COUNT}.") for value in ("two", "0", "1.0")],
        ("--meds.memory.shards=true", f"meds.memory.shards=True: {COUNT}."),
        ("--meds.max_steps=0", f"meds.max_steps=0: {COUNT}, or null."),
        ("--meds.memory.preset=papers", 'preset=papers: must be "paper", "reference", "robust", "equal" or "answers".'),
        ("--meds.memory.preset=null", 'meds.memory.preset: must be "paper", '),
        ("--meds.memory.noise=true", 'meds.memory.noise=True: must be "none" or "cluster", or null.'),
        ("--meds.memory.min_cluster_size=1", "min_cluster_size=1: must be an integer that is at least 2, or null."),
        ("--meds.enabled=1", "meds.enabled=1: must be true or false."),
        ("--meds.penalty=1", "meds.penalty=1: must be a section: set the keys below it."),
        *[
            (f"--meds.penalty.alpha={value}", f"={value}: must be a number that is at least 0.")
            for value in (-0.1, "high")
        ],
        ("--meds.penalty.alpha=.nan", "meds.penalty.alpha=nan: must be a number that is at least 0."),
        ("--meds.watchdog.minutes=0", "meds.watchdog.minutes=0: must be a number that is above 0, or null."),
        ("--meds.features.layers=0", 'layers=0: must be "last-half" or "all", or an integer that is at least 1, or a'),
        ("--meds.features.layers=1.5", "layers=1.5: must be "),
        *[
            (f"--meds.features.answer_pattern={value}", f"={value}: {ONE_GROUP}")
            for value in ("(a", "(a)(b)", "(" * 400 + "a" + ")" * 400, "a" * 1_000 + "(b)")
        ],
        ("--meds.run_dir=''", "meds.run_dir=: must be a text that is not empty."),
        ("--meds.policy.entropy_advantage.kappa=1", "kappa=1: must be a number that is above 1."),
        ("--meds.policy.warmup_steps=-1", "warmup_steps=-1: must be an integer that is at least 0, or null."),
        ("--meds.exploration.answer_baseline=2", "answer_baseline=2: must be a number that is from 0 to 1."),
        (f"{FUNCTION} --meds.features.layers=all", "meds.features.layers=all: concerns layer logits, which meds."),
        (f"{FUNCTION} {ANSWERS}", f"meds.features.function=f.py: {NO_LOGITS}"),
        (f"{ANSWERS} --meds.features.layers=all", f"meds.features.layers=all: {NO_LOGITS}"),
        (f"{ANSWERS} --meds.memory.noise=cluster", 'noise=cluster: does not apply to the preset "answers", which'),
        (f"{PASS} {BONUS}", "pass_at_k=4: cannot be combined with answer_bonus; both change the advantage. Leave it"),
        (f"{PASS} --meds.enabled=false", "pass_at_k=4: needs meds.enabled: true; to compare without a penalty, set m"),
        (BONUS, 'meds.memory.preset=paper: must be "answers" for meds.exploration.answer_bonus.'),
        (f"{BONUS} {ANSWERS}", 'meds.memory.remember=wrong: must be "both" for meds.exploration.answer_bonus.'),
        ("--meds.memory.branch_from=a.json", "branch_from=a.json: was removed, and only null is read. Leave it out"),
        ("--meds.features.answer_openings=##", 'answer_openings=##: was removed, and only ["\\\\boxed{"] is read. Le'),
        ("--meds.penalty.scope=batch", 'meds.penalty.scope=batch: was removed, and only "history" is read. Leave it '),
        ("--logger.wandb.key=secret", "logger.wandb.key=***: credentials are read from the environment, because"),
        ("stray --a 1", "argument=stray: is not an override. Write --section.key VALUE."),
    ],
)
def test_refused(tmp_path: Path, words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(write(tmp_path, MINIMAL), words.split(" "))


def test_a_value_is_checked_when_a_section_is_made_and_converted_without_loss() -> None:
    with pytest.raises(
        ConfigError, match=r'^meds\.memory\.remember=some: must be "wrong", "right", "both" or "none"\.$'
    ):
        MemorySettings(remember="some")  # type: ignore[arg-type]
    meds = settings_of({"meds.run_dir": "r", "meds.penalty.beta": 1})
    assert type(meds.penalty.beta) is float


@pytest.mark.parametrize(
    "text",
    [
        "meds: {run_dir: r, memory: {branch_from: null}, penalty: {scope: history}}",
        "meds: {run_dir: r, features: {answer_openings: ['\\boxed{']}, rollout: {keep_all_wrong: false}}",
        "meds.run_dir: r\nmeds.memory.branch_from:\nmeds.penalty.scope: history",
    ],
)
def test_a_removed_setting_at_its_default_is_as_if_it_were_absent(tmp_path: Path, text: str) -> None:
    config = load_config(write(tmp_path, text))
    assert config == load_config(write(tmp_path, "meds: {run_dir: r}"))
    assert not any(name in config.as_yaml() for name in ("scope", "branch_from", "answer_openings", "keep_all_wrong"))


REMOVED = {"a.b": 0, "c.d": ["\\boxed{"]}


def test_removed_names_at_their_defaults_are_left_out_of_a_tree() -> None:
    kept = {"a": {"x": 1}, "b": 5, "y": {"a.b": 5}, 7: None}
    for openings in (["\\boxed{"], ("\\boxed{",)):
        assert without_removed({**kept, "a": {"x": 1, "b": 0}, "c.d": openings}, REMOVED) == kept


@pytest.mark.parametrize("value", [1, False, 0.0, "0", None, [0]])
def test_a_removed_name_with_another_value_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"a\.b.*: was removed, and only 0 is read\. Do this\.$"):
        without_removed({"a": {"b": value}}, REMOVED, "Do this.")
    with pytest.raises(
        ConfigError, match=re.escape("c.d=['##']: was removed, and only [\"\\\\boxed{\"] is read. Leave")
    ):
        without_removed({"c.d": ["##"]}, REMOVED)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "run.yaml: must be a mapping that begins with a key such as `meds:`."),
        ("a: [", "run.yaml: is not a readable YAML file (while parsing"),
        ("meds: {}", "meds.run_dir: this setting is required; it has no default."),
        (
            "meds:\n  penalty:\n    alpha: 1\nmeds.penalty.alpha: 2",
            "meds.penalty.alpha=2: is set twice. Remove a line.",
        ),
        ("meds.penalty: 1\nmeds.penalty.alpha: 2", "meds.penalty=1: must be a section: set the keys below it."),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(write(tmp_path, text))
    with pytest.raises(ConfigError, match=r"^CONFIG=nowhere.yaml: is not a readable YAML file \(No such file"):
        load_config("nowhere.yaml")


# ── variants: named changes to a run's file ──


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
    ("file", "later", "warning"),
    [
        (
            "features: {layers: 14}",
            ANSWERS,
            'meds.features.layers=14 has no effect: it concerns layer logits, but the preset "answers" remembers final '
            "answers.",
        ),
        (
            "features: {layers: 14}",
            FUNCTION,
            "meds.features.layers=14 has no effect: it concerns layer logits, which meds.features.function replaces.",
        ),
    ],
)
def test_settings_left_without_effect_are_told_in_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str, later: str, warning: str
) -> None:
    path = write(tmp_path, f"meds:\n  run_dir: r\n  {file}\n")
    config = load_config(path, [later])
    assert [record.getMessage() for record in caplog.records] == [warning]
    assert config.meds == load_config(write(tmp_path, MINIMAL), [later, "--meds.run_dir=r"]).meds
    assert load_config(write(tmp_path, config.as_yaml())).meds == config.meds  # what is saved has no such setting
    assert len(caplog.records) == 1
    key, _, value = later.removeprefix("--").partition("=")
    together = write(tmp_path, f"meds:\n  run_dir: r\n  {file}\n{key}: {value}\n")
    with pytest.raises(ConfigError, match=r"Leave it out\.$"):  # both are of one file
        load_config(together)


def test_a_reward_that_is_replaced_later_is_told_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, "meds: {run_dir: r, reward: math}\n")
    config = load_config(path, ["--reward.remote_url=my.py"])
    assert (config.meds.reward, config.openrlhf) == (None, {"reward.remote_url": "my.py"})
    assert caplog.messages == ["meds.reward=math has no effect: it is replaced by reward.remote_url"]
    both = load_config(write(tmp_path, "meds: {run_dir: r, reward: math}\nreward.remote_url: my.py\n"))
    assert both.meds.reward == "math"  # refused by the checks of a run


NO_VARIANT = "is not a variant. It needs a name without / and values by dotted key"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("steep", "--variant=steep: must be FILE:NAME, e.g. "),
        ("{0}/some.yaml:stepe", "stepe: unknown variant. Did you mean steep?"),
        ("{0}/some.yaml:other", "other: unknown variant. Choose one of steep, nothing, 7, no/name, flat."),
        ("{0}/none.yaml:steep", "not a readable YAML file (No such file or directory)."),
        *[(f"{{0}}/{name}", NO_VARIANT) for name in ("some.yaml:no/name", "some.yaml:flat", "run.yaml:meds")],
    ],
)
def test_a_variant_that_is_refused(files: Path, reference: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(files / "run.yaml", ["--variant", reference.format(files)])


def test_example_of_the_page_is_a_whole_configuration(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    block = page.partition("a `meds:` section:\n\n")[2].partition("\n\n")[0]
    (tmp_path / "recipe.yaml").write_text(textwrap.dedent(block))
    config = load_config(tmp_path / "recipe.yaml", {})
    assert config.meds.run_dir == "runs/my-run"
    assert config.openrlhf["rollout.n_samples_per_prompt"] == 8
