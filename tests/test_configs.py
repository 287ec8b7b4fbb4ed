"""The files in configs/: they load, fit their clusters, and differ from each other where the methods do."""

import argparse
from pathlib import Path

import numpy as np
import pytest
import yaml

from meds_openrlhf.cli.eval import add_parser
from meds_openrlhf.config import RunConfig, load_config
from meds_openrlhf.config.loader import flatten
from meds_openrlhf.config.method import ClusteringMethod
from meds_openrlhf.evaluation.models import response_length
from meds_openrlhf.evaluation.request import PAPERS
from meds_openrlhf.features.kind import transform_of
from meds_openrlhf.memory.assignment import assign
from meds_openrlhf.memory.clustering import cluster_sets
from meds_openrlhf.memory.sets import Sets
from meds_openrlhf.stats.estimates import ks_up_to

CONFIGS = Path(__file__).parents[1] / "configs"
MODELS = ["qwen2.5-math-7b", "qwen3-1.7b", "qwen3-8b"]
METHODS = ["grpo", "grpo-entropy", "dapo", "meds"]
ABLATIONS = CONFIGS / "ablations.yaml"
RIVALS = CONFIGS / "rivals.yaml"
KL = {"algo.kl.init_coef": 1e-3, "algo.kl.use_loss": True}
GRPO = {**KL, "actor.eps_clip_low_high": [0.2, 0.2], "algo.advantage.estimator": "group_norm"}
GRPO |= {"algo.dynamic_filtering_enable": None, "reward.overlong_buffer_len": None}
DAPO = {"actor.eps_clip_low_high": [0.2, 0.28], "actor.loss_agg_mode": "token-mean", "algo.kl.init_coef": 0}
DAPO |= {"algo.advantage.estimator": "group_norm", "algo.dynamic_filtering_enable": True}
DAPO |= {"reward.overlong_buffer_len": 512, "reward.overlong_penalty_factor": 1.0}


def settings(model: str, method: str) -> dict[str, object]:
    return flatten(yaml.safe_load((CONFIGS / model / f"{method}.yaml").read_text()))


def differences(model: str, one: str, other: str) -> dict[str, tuple[object, object]]:
    left, right = settings(model, one), settings(model, other)
    keys = left.keys() | right.keys()
    return {key: (left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)}


@pytest.mark.parametrize("model", [*MODELS, "cpu"])
def test_every_model_has_every_method_and_neighbors_differ_only_in_it(model: str) -> None:
    assert {path.name for path in (CONFIGS / model).glob("*.yaml")} == {f"{method}.yaml" for method in METHODS}
    kl = {"algo.kl.init_coef", "algo.kl.use_loss", "algo.kl.estimator"}
    if model == "cpu":
        kl.add("ref.num_gpus_per_node")  # elsewhere the cluster decides
    dapo = {"actor.eps_clip_low_high", "actor.loss_agg_mode", "algo.dynamic_filtering_enable"}
    overlong = {"reward.overlong_buffer_len", "reward.overlong_penalty_factor"}
    entropy = {"meds.run_dir", "meds.policy.entropy_advantage.alpha", "actor.dual_clip"}
    assert differences(model, "grpo", "grpo-entropy").keys() == entropy
    assert differences(model, "grpo", "dapo").keys() == {"meds.run_dir", *kl, *dapo, *overlong, "actor.dual_clip"}
    penalty = differences(model, "dapo", "meds")
    assert penalty.keys() == {"meds.run_dir", "meds.penalty.alpha", "meds.penalty.beta"}
    alpha, beta = penalty["meds.penalty.alpha"], penalty["meds.penalty.beta"]
    small = model == "qwen3-8b"
    assert (alpha, beta) == ((0, 0.02 if small else 0.1), (None, 0.04 if small else 0.2))


def test_the_real_model_has_dapo_and_meds_which_differ_only_in_the_penalty() -> None:
    assert {path.name for path in (CONFIGS / "smollm2-135m").glob("*.yaml")} == {"dapo.yaml", "meds.yaml"}
    penalty = differences("smollm2-135m", "dapo", "meds")
    assert penalty.keys() == {"meds.run_dir", "meds.penalty.alpha", "meds.penalty.beta"}
    for name in yaml.safe_load(RIVALS.read_text()):
        load_config(CONFIGS / "smollm2-135m" / "dapo.yaml", ["--variant", f"{RIVALS}:{name}"])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_the_papers_settings(model: str, method: str) -> None:
    found = settings(model, method)
    length = 3072 if model == "qwen2.5-math-7b" else 7168
    expected = {
        "meds.run_dir": f"runs/{model}-{method}", "meds.policy.warmup_steps": 10, "meds.policy.minibatches": "prompts",
        "rollout.batch_size": 512, "rollout.n_samples_per_prompt": 16, "rollout.max_new_tokens": length,
        "rollout.temperature": 1.0, "rollout.top_p": 1.0, "data.max_len": 1024 + length, "train.batch_size": 16 * 16,
        "meds.features.layers": 14 if model == "qwen3-8b" else None,  # elsewhere the default, half of 28
        "actor.adam.lr": 1e-6, "actor.adam.weight_decay": 0.1, "actor.lr_scheduler": "constant_with_warmup",
        "actor.max_norm": 1.0, "actor.dual_clip": 3.0 if method == "grpo" else 10.0,
        **(DAPO if method in ("dapo", "meds") else GRPO),
    }  # fmt: skip
    assert {key: found.get(key) for key in expected} == expected
    assert response_length(load_config(CONFIGS / model / f"{method}.yaml")) == length  # of the evaluation too


def test_the_papers_evaluation_and_clustering() -> None:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    found = parser.parse_args(["eval", "model", "--benchmarks", *PAPERS])
    assert (found.n, found.temperature, found.top_p, found.seed, found.max_tokens) == (128, 1.0, 1.0, 0, None)
    assert PAPERS == ("aime24", "amc23", "math500", "minerva", "olympiadbench")
    assert ks_up_to(found.n) == [1, 2, 4, 8, 16, 32, 64, 128]
    meds = load_config(CONFIGS / "qwen2.5-math-7b" / "meds.yaml").meds
    paper = ClusteringMethod(min_cluster_size=2, assignment="knn", noise="none", algorithm="hdbscan")
    assert meds.memory.method == paper


def ablation(name: str, model: str = "qwen2.5-math-7b") -> RunConfig:
    return load_config(CONFIGS / model / "meds.yaml", ["--variant", f"{ABLATIONS}:{name}"])


def test_every_ablation_loads_into_a_folder_of_its_own() -> None:
    names = list(yaml.safe_load(ABLATIONS.read_text()))
    assert {"single", "28-diff", "14-diff", "28", "14", "same-answer", "weights"} <= set(names)
    for model in MODELS:
        assert len({ablation(name, model).meds.run_dir for name in names}) == len(names)


@pytest.mark.parametrize("model", [*MODELS, "cpu"])
@pytest.mark.parametrize("method", ["grpo", "dapo", "meds"])
@pytest.mark.parametrize("name", ["pass-at-k", "answer-ucb", "right-weight", "focal"])
def test_every_rival_goes_with_every_model_and_penalty(model: str, method: str, name: str) -> None:
    assert set(yaml.safe_load(RIVALS.read_text())) == {"pass-at-k", "answer-ucb", "right-weight", "focal"}
    plain = load_config(CONFIGS / model / f"{method}.yaml")
    rival = load_config(CONFIGS / model / f"{method}.yaml", ["--variant", f"{RIVALS}:{name}"])
    assert rival.meds.run_dir == f"{plain.meds.run_dir}-{name}"
    assert rival.meds.penalty == plain.meds.penalty
    own = {"pass-at-k": "pass_at_k", "answer-ucb": "answer_bonus", "right-weight": "right_weight"}.get(
        name, "focal_gamma"
    )
    assert getattr(rival.meds.exploration, own) != getattr(plain.meds.exploration, own)


@pytest.mark.parametrize(
    ("name", "layers", "count"),
    [("14", 28, 14), ("28", 28, 28), ("last-half", 28, 14), ("14-diff", 28, 14), ("28-diff", 28, 27)],
)
def test_the_papers_features(name: str, layers: int, count: int) -> None:
    logits = np.random.default_rng(0).normal(size=(3, layers))
    selected = transform_of(ablation(name).meds).select(logits)
    assert np.allclose(selected, (np.diff(logits, axis=1) if "diff" in name else logits)[:, -count:])


def test_in_the_ablation_single_all_past_errors_are_one_cluster() -> None:
    method = ablation("single").meds.memory.method
    stored, new = np.random.default_rng(0).normal(size=(2, 9, 14))
    offsets = np.array([0, 9])
    labels = cluster_sets(stored, offsets, method)
    assert assign(Sets(new, offsets, stored, offsets, labels), method)[1].tolist() == [9] * 9
