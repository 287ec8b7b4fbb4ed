"""A study's file: what is unknown, contradictory or impossible is refused, in one line."""

from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.study.plan import runs_of
from meds_openrlhf.study.study_file import load_study
from tests.study.studies import content, study, write_study

CLAIM = {"says": "s", "method": "meds", "than": "dapo", "metric": "pass@1"}


def test_a_file_is_what_it_says(tmp_path: Path) -> None:
    found = study(tmp_path)
    assert (found.name, found.steps, found.seeds) == ("small", 6, (1, 2, 3, 4, 5))
    assert found.evaluated_steps == [2, 4, 6]
    assert found.tasks["sums"].settings == {"actor.model_name_or_path": "policy-{seed}"}
    assert found.claims["better"].metrics == ("pass@1", "pass@1")
    assert found.tasks_of(found.claims["better"]) == ("sums", "gcd")


def test_folders_are_named_after_the_file_or_by_the_caller(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    assert load_study(path, Path("a"), Path("b")).runs == Path("a")
    path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.startswith(("runs", "res"))))
    assert (load_study(path).runs, load_study(path).results) == (Path("runs/small"), Path("results/small"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": [1]}, "study.seed: [1] is no setting; did you mean seeds?"),
        ({"evaluation": {"every": 2, "n": 4, "nn": 3}}, "study.evaluation.nn: 3 is no setting"),
        (
            {"methods": {"dapo": {"config": "dapo.yaml", "variant": "x"}}},
            "methods.dapo.variant: 'x' is no setting; did",
        ),
        ({"seeds": [1, 1]}, "seeds: [1, 1] must be distinct"),
        ({"seeds": [True]}, "seeds: True is no whole number"),
        ({"steps": 5}, "steps: 5 is no multiple of evaluation.every, 2"),
        ({"tasks": {}}, "tasks: None is empty"),
        ({"tasks": {"a/b": {"benchmarks": ["x"]}}}, "tasks: 'a/b' is no plain name"),
        ({"settings": {"train.seed": 3}}, "settings.train.seed: 3 is decided by the study itself"),
        ({"settings": {"lr": 3}}, "settings.lr: 3 is no setting of a run"),
        (
            {"rule": {**content()["rule"], "primary": ["pass@8"]}},
            "rule.primary: 'pass@8' needs k from 1 to evaluation.n",
        ),
        ({"rule": {**content()["rule"], "primary": ["accuracy"]}}, "rule.primary: 'accuracy' is no metric"),
        ({"rule": {**content()["rule"], "last": 4}}, "rule.last: 4 is more than the 3 evaluations of a run"),
        ({"rule": {**content()["rule"], "statistic": "median"}}, "rule.statistic: 'median' is neither \"mean\" nor"),
        (
            {"claims": {"c": {**CLAIM, "than": "grpo"}}},
            "claims.c.than: 'grpo' is no method of the study; those are dapo",
        ),
        ({"claims": {"c": {**CLAIM, "direction": "up"}}}, "claims.c.direction: 'up' is neither"),
        ({"claims": {"c": {**CLAIM, "than": "meds"}}}, "claims.c.than: 'meds' is compared with itself"),
        ({"claims": {"c": {**CLAIM, "metric": "agreement:single/any"}}}, "needs known_mistakes, which gcd lacks"),
        ({"claims": {"c": {**CLAIM, "tasks": ["sum"]}}}, "claims.c.tasks: 'sum' is no task of the study"),
    ],
)
def test_what_is_wrong_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        study(tmp_path, **changes)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {"meds.penalty.beta": 0.1}}, "settings.meds.penalty.beta: 0.1 contradicts 0.3 of variant"),
        ({"settings": {"meds.penalty.bet": 0.1}}, "meds.penalty.bet: 0.1 is no setting; did you mean beta"),
        ({"settings": {"ckpt.disable_ds": True}}, "ckpt.disable_ds: True loses checkpoints that sums-dapo-1 evaluates"),
        ({"methods": {"a": {"config": "none.yaml"}}, "claims": {}}, "none.yaml' cannot be read (No such file"),
        (
            {"tasks": {"a": {"benchmarks": ["x"]}, "a-b": {"benchmarks": ["x"]}},
             "methods": {"b-c": {"config": "dapo.yaml"}, "c": {"config": "dapo.yaml"}}, "claims": {}},
            "tasks: 'a-b-c-1' is the name of two runs",
        ),
    ],
)  # fmt: skip
def test_runs_that_cannot_be_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        runs_of(study(tmp_path, **changes))
    assert message in str(refused.value)
