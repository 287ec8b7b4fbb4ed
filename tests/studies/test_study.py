"""A study's file and its runs: what is wrong is refused in one line, and commands are what a user would type."""

from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf.config import ConfigError, load_config
from meds_openrlhf.config.loader import parse_overrides
from studies.study import Run, as_word, load_study
from tests.studies.small import small

REPOSITORY = Path(__file__).parents[2]
STUDIES = sorted((REPOSITORY / "studies").glob("*.yaml"))
CLAIM = {"says": "s", "method": "meds", "than": "dapo", "metric": "pass@1"}


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run_named(name: str, **changes: Any) -> Run:
    return next(run for run in small(Path(), **changes).runs() if run.name == name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": [1]}, "study.seed=[1]: "),
        ({"evaluation": {"every": 0, "n": 4}}, "evaluation.every=0: must be an integer that is at least 1"),
        ({"methods": {"dapo": {"config": "dapo.yaml", "variant": "x"}}}, "methods.dapo.variant=x: "),
        ({"seeds": [1, 1]}, "seeds=[1, 1]: must be distinct"),
        ({"steps": 5}, "steps=5: must be a multiple of evaluation.every"),
        ({"tasks": {}}, "tasks=[]: must give runs"),
        ({"tasks": {"a/b": {"benchmarks": ["x"]}}}, "tasks=a/b: is not a plain name"),
        ({"tasks": {"a": ["x"]}}, "tasks.a=['x']: must be a section, not a value"),
        (
            {"tasks": {"a": {"benchmarks": ["x"]}, "a-b": {"benchmarks": ["x"]}},
             "methods": {"b-c": {"config": "dapo.yaml"}, "c": {"config": "dapo.yaml"}}, "claims": {}},
            "tasks=['a', 'a-b']: must give runs of distinct names",
        ),
        ({"rule": {"primary": ["pass@8"], "last": 1}}, "rule.primary=pass@8: must be pass@1 to pass@4"),
        ({"rule": {"primary": ["pass@1/none"], "last": 1}}, "rule.primary=pass@1/none: must be pass@1 to pass@4"),
        ({"rule": {"primary": ["pass@1"], "last": 1, "interval": "z"}}, 'rule.interval=z: must be "bootstrap", "t" or'),
        ({"rule": {"primary": ["accuracy"], "last": 1}}, "rule.primary=accuracy: must be pass@1 to pass@4, the same"),
        ({"rule": {"primary": ["pass@1"], "last": 4}}, "rule.last=4: must be from 1 to 3 evaluations"),
        ({"claims": {"c": {**CLAIM, "than": "grpo"}}}, "claims.c.than=grpo: must be one of dapo, meds"),
        ({"claims": {"c": {**CLAIM, "tasks": ["sum"]}}}, "claims.c.tasks=sum: must be one of sums, chains"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        small(Path(), **changes)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {"train.seed": 3}}, "settings.train.seed=3: is set by the study itself"),
        ({"settings": {"meds.penalty.beta": 0.1}}, "settings.meds.penalty.beta=0.1: contradicts 0.3 elsewhere"),
        ({"settings": {"meds.penalty.bet": 0.1}}, "meds.penalty.bet=0.1: "),
        ({"methods": {"a": {"config": "none.yaml"}}, "claims": {}}, "none.yaml: is not a readable YAML file"),
    ],
)
def test_runs_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    runs = small(Path(), **changes).runs()
    with pytest.raises(ConfigError) as refused:
        [run.config() for run in runs]
    assert message in str(refused.value)


def test_pairs_are_complete_as_early_as_possible() -> None:
    names = [run.name for run in small(Path()).runs()]
    assert names[:5] == ["sums-dapo-1", "sums-meds-1", "chains-dapo-1", "chains-meds-1", "sums-dapo-2"]
    assert len(names) == len(set(names)) == 20


def test_training_resumes_and_has_all_settings() -> None:
    words = run_named("sums-meds-3").training()
    assert words[:5] == ["meds", "train", "configs/dapo.yaml", "--variant", "variants.yaml:harder"]
    assert words[-1] == "--resume"
    config = load_config(words[2], words[3:-1])
    assert (config.meds.run_dir, config.meds.max_steps) == ("runs/small/sums-meds-3", 6)
    assert (config.meds.penalty.alpha, config.meds.penalty.beta) == (0.0, 0.3)
    assert config.openrlhf == {
        "actor.model_name_or_path": "policy-3",
        "data.prompt_dataset": "train.jsonl",
        "actor.adam.lr": 1e-6,
        "train.seed": 3,
        "ckpt.save_steps": 2,
        "ckpt.max_num": 8,
    }


def test_late_checkpoints_and_the_policy_before_training_are_evaluated() -> None:
    run = run_named("chains-meds-1", evaluation={"every": 2, "after": 2, "n": 4})
    folder = "runs/small"
    assert run.evaluation() == [
        *("meds", "eval", f"meds@4={folder}/chains-meds-1@4", f"meds@6={folder}/chains-meds-1@6"),
        *("--benchmarks", "chains.jsonl", "--out", f"{folder}/evaluations/chains-meds-1", "--n=4", "--allow-cpu"),
    ]
    assert run.evaluation_before()[2:] == [
        *("start=policy", "--benchmarks", "chains.jsonl"),
        *("--out", f"{folder}/evaluations/chains-start-1", "--n=4", "--allow-cpu"),
    ]


def test_preparation_and_benchmarks_know_the_seed() -> None:
    task = {"benchmarks": ["made-{seed}/eval.jsonl"], "prepare": ["meds data arithmetic --out 'made {seed}'"]}
    run = run_named("a-dapo-4", tasks={"a": task}, claims={})
    assert run.preparation() == [["meds", "data", "arithmetic", "--out", "made 4"]]
    assert "made-4/eval.jsonl" in run.evaluation()


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_study_has_runs_that_could_start(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    for run in load_study(path).runs():
        if path.stem == "laboratory" and run.method in ("unlikeliness", "keep-all-wrong", "this-step"):
            with pytest.raises(ConfigError, match=run.method):  # finished; its comment says where it runs again
                run.config()
        else:
            assert run.config().meds.run_dir == f"runs/{path.stem}/{run.name}"


def test_the_papers_table_is_three_models_four_methods_and_five_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    runs = load_study(REPOSITORY / "studies/paper-table1.yaml").runs()
    assert len(runs) == 3 * 4 * 5
    configs = [run.config() for run in runs]
    assert {config.meds.max_steps for config in configs} == {200}
    assert {config.meds.memory.preset for config in configs if config.meds.penalty.alpha} == {"reference"}
    starts = [run.evaluation_before()[2] for run in runs[:12:4]]
    assert starts == ["start=Qwen/Qwen2.5-Math-7B", "start=Qwen/Qwen3-1.7B", "start=Qwen/Qwen3-8B"]


@pytest.mark.parametrize(
    "value",
    [*("a b", "1", "true", "null", "", "#### ", "a: b", "- a", '"q"', "it's"), 3, 1e-6, 0.28, True, None,
     [0.2, 0.28], [1], ["a", "b"], ["x" * 100, "y"]],
)  # fmt: skip
def test_a_value_as_a_word_is_read_back(value: object) -> None:
    assert parse_overrides([f"--a={as_word(value)}"]) == {"a": value}
